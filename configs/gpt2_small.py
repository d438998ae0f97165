"""GPT-2 small on OpenWebText: the decoder that most later ones are compared with.

Source:   Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.3 and table 2 (12 layers, width 768,
          1,024 tokens of context, learned positions, norm before the sublayers); batch, rate and decay as nanoGPT trains it again:
          480 rows a step, AdamW with b2 0.95, 6e-4 down to 6e-5, decay 0.1, no dropout.
Command:  pip install "flaxformer_lite[hub]"; python train.py configs/gpt2_small.py
          flaxformer-lite evaluate runs/gpt2_small
Expected: nanoGPT reports 2.85 nats a token on held-out OpenWebText after 600,000 steps with GPT-2's own subwords. The subwords
          here are others, so only nats a character compare. In the paper, untuned: perplexity 29.41 on WikiText2, 35.13 on
          LAMBADA. Not run here; 124 million parameters.
Vary it:  the tokens are made once and kept on disk, 2 bytes each (docs/data.md); split="train[4000:400000]" is a twentieth of
          the text. `import hf` brings the published weights.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import PRE_NORM, DropoutRates, LayerNorm, Learned, ModelConfig, Normal
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.files.data import DataConfig, HubDataset
from flaxformer_lite.files.records import Documents
from flaxformer_lite.files.tokenizers import SentencePiece


def get_config() -> Config:
    def documents(split: str) -> HubDataset:
        return HubDataset(path="Skylion007/openwebtext", split=split, record=Documents())

    return Config(
        model=ModelConfig(
            vocab_size=50_304,
            d_model=768,
            num_heads=12,
            d_ff=3072,
            num_encoder_layers=0,
            num_decoder_layers=12,
            positions=Learned(max_positions=1024),
            activation="gelu_tanh",
            norm=LayerNorm(epsilon=1e-5),
            residual=PRE_NORM,
            dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
            scale_embeddings=False,
            initializer=Normal(stddev=0.02),
            dtype="bfloat16",
        ),
        objective=CausalLM(),
        data=DataConfig(
            train=documents("train[4000:]"),
            eval=documents("train[:4000]"),
            tokenizer=SentencePiece(model_type="bpe", character_coverage=0.9995),
            tokens_per_batch=480 * 1024,
            rows_multiple=480,
            bucket_lengths=(1024,),
            max_target_length=1024,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.95),
            schedule=Cosine(peak_rate=6e-4, warmup_steps=2_000, final_rate_fraction=0.1),
            weight_decay=0.1,
        ),
        train=TrainConfig(steps=600_000, num_micro_batches=5, log_every=100, eval_every=2_000, checkpoint_every=2_000),
    )
