"""T5 1.1, base size: span corruption on C4 with the gated feed-forward.

Source:   Raffel et al. 2019, arXiv:1910.10683, sections 3.1 and 3.7: 15 % of the tokens in spans of 3, 128 rows of 512 tokens,
          Adafactor at 0.01 and then 1 / sqrt(step), 524,288 steps; gated feed-forward by Shazeer 2020, arXiv:2002.05202, and
          an output table of its own as in the 1.1 release. Rates rise over the first 10,000 steps here, and are
          constant there.
Command:  pip install "flaxformer_lite[hub]"; python train.py configs/t5_1_1_base.py
          flaxformer-lite evaluate runs/t5_1_1_base
Expected: Shazeer reports 1.942 nats a token held out after 65,536 steps, 1.633 after 524,288 (row GEGLU; ReLU: 1.997, 1.677).
          Raffel et al. report 82.7 on GLUE for the base model of release 1.0. Not run here; 248 million parameters.
Vary it:  split="train[:1%]" for less text; tokens are made once (docs/data.md); configs/t5_1_1_small.py is smaller.
          `import hf` brings the published weights.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import PRE_NORM, DotProduct, DropoutRates, ModelConfig, RMSNorm
from flaxformer_lite.core.model.positions import RelativeBias
from flaxformer_lite.core.objectives import SpanCorruption
from flaxformer_lite.core.optim import Adafactor, InverseSquareRoot, OptimizerConfig
from flaxformer_lite.files.data import DataConfig, HubDataset
from flaxformer_lite.files.records import Documents
from flaxformer_lite.files.tokenizers import SentencePiece


def get_config() -> Config:
    def documents(split: str) -> HubDataset:
        return HubDataset(path="allenai/c4", name="en", split=split, record=Documents())

    return Config(
        model=ModelConfig(
            vocab_size=32_128,  # 32,028 subwords, and 100 sentinels at the top
            d_model=768,
            num_heads=12,
            d_ff=2048,
            num_encoder_layers=12,
            num_decoder_layers=12,
            attention=DotProduct(d_key=64, bias=False, scale=1.0),
            positions=RelativeBias(num_buckets=32, max_distance=128),
            feed_forward_bias=False,
            activation="geglu_tanh",
            norm=RMSNorm(epsilon=1e-6),
            residual=PRE_NORM,
            dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
            scale_embeddings=False,
            share_target_output=False,
            dtype="bfloat16",
        ),
        objective=SpanCorruption(first_sentinel=32_127),
        data=DataConfig(
            train=documents("train"),
            eval=documents("validation[:4000]"),
            tokenizer=SentencePiece(model_type="unigram", character_coverage=0.9995),
            tokens_per_batch=128 * 512,
            rows_multiple=128,
            bucket_lengths=(512,),
            max_source_length=512,
            max_target_length=114,
        ),
        optimizer=OptimizerConfig(
            algorithm=Adafactor(), schedule=InverseSquareRoot(peak_rate=0.01, warmup_steps=10_000), clip_norm=None
        ),
        train=TrainConfig(steps=524_288, log_every=100, eval_every=5_000, checkpoint_every=5_000),
    )
