"""BERT base on Wikipedia: covered subwords and next sentences, as the paper trains it.

Source:   Devlin et al. 2018, arXiv:1810.04805, sections 3.1 and A.2: 12 layers, width 768, 256 rows of 512 a step, Adam at 1e-4
          with 10,000 steps of warm-up and a linear fall, decay 0.01, dropout 0.1, 80/10/10. The books that the paper reads beside
          Wikipedia are no longer published; its first 900,000 steps have rows of 128.
Command:  pip install "flaxformer_lite[hub]"; python train.py configs/bert_base.py
          flaxformer-lite evaluate runs/bert_base
Expected: in the paper, after 1,000,000 steps: 79.6 on average on GLUE, 88.5 F1 on SQuAD 1.1 (single model, development set); four
          days on 16 TPU chips. Not run here; 110 million parameters.
Vary it:  --objective.whole-words; a config with max_source_length=128 for the first part and train.init_from for the second.
          docs/fine-tuning.md goes on from there; `import hf` brings the published weights.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import (
    POST_NORM,
    DropoutRates,
    LanguageModelHead,
    LayerNorm,
    Learned,
    ModelConfig,
    Normal,
    Pooler,
)
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.core.optim import AdamW, Linear, OptimizerConfig
from flaxformer_lite.files.data import DataConfig, HubDataset
from flaxformer_lite.files.records import Documents
from flaxformer_lite.files.tokenizers import SentencePiece


def get_config() -> Config:
    def documents(split: str) -> HubDataset:
        return HubDataset(path="wikimedia/wikipedia", name="20231101.en", split=split, record=Documents())

    return Config(
        model=ModelConfig(
            vocab_size=30_522,  # the last id covers subwords
            d_model=768,
            num_heads=12,
            d_ff=3072,
            num_encoder_layers=12,
            num_decoder_layers=0,
            num_token_types=2,
            positions=Learned(max_positions=512),
            activation="gelu",
            norm=LayerNorm(epsilon=1e-12),
            residual=POST_NORM,
            dropout=DropoutRates(embedding_rate=0.1, attention_rate=0.1, feed_forward_rate=0.0, residual_rate=0.1),
            embedding_norm=True,
            scale_embeddings=False,
            head=LanguageModelHead(bias=True, transform="gelu"),
            pooler=Pooler(num_classes=2),
            initializer=Normal(stddev=0.02),
            dtype="bfloat16",
        ),
        objective=MaskedLM(mask_token=30_521, next_sentence=True),
        data=DataConfig(
            train=documents("train[4000:]"),
            eval=documents("train[:4000]"),
            tokenizer=SentencePiece(model_type="unigram", character_coverage=0.9995),
            tokens_per_batch=256 * 512,
            rows_multiple=256,
            bucket_lengths=(512,),
            max_source_length=512,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.999, eps=1e-6),
            schedule=Linear(peak_rate=1e-4, warmup_steps=10_000),
            weight_decay=0.01,
        ),
        train=TrainConfig(steps=1_000_000, log_every=100, eval_every=10_000, checkpoint_every=10_000),
    )
