"""ModernBERT base on Wikipedia: covered subwords in packed rows of 1,024, then of 8,192; windows, rotary positions, no biases.

Source:   Warner et al. 2024, arXiv:2412.13663, section 2 and appendix A: 22 layers, width 768, 12 heads, gated feed-forward of
          1,152, every third layer reads the whole text, the others 64 tokens on both sides; 30 % of the tokens to be told; 4,608
          rows of 1,024 a step, 8e-4 after 3 billion tokens of warm-up, decay 1e-5. There the text is 2 trillion tokens of web and
          code, AdamW clips each update (StableAdamW) and the batch grows from 768 rows over the first 50 billion tokens: neither
          is here.
Command:  pip install "flaxformer_lite[hub]"; python train.py configs/modernbert_base.py
          flaxformer-lite evaluate runs/modernbert_base
Expected: in the paper, after 1.7 trillion tokens in rows of 1,024 and 0.3 trillion in rows of 8,192: 88.4 on average on GLUE. One
          pass over the text here is about 1,000 steps, which is where this config stops. Not run here; 149 million parameters.
Vary it:  the second part of the paper, 72 rows of 8,192 at 3e-4 and a longer wave:
          python train.py configs/modernbert_base.py --workdir runs/modernbert_8192 --train.init-from runs/modernbert_base \
              --data.max-source-length 8192 --data.bucket-lengths 8192 --data.tokens-per-batch 589824 --data.rows-multiple 72 \
              --train.num-micro-batches 9 --model.positions.base 160000 --optimizer.schedule.peak-rate 3e-4
          `import hf answerdotai/ModernBERT-base` brings the published weights.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import (
    DotProduct,
    DropoutRates,
    LanguageModelHead,
    LayerNorm,
    ModelConfig,
    Normal,
    Residual,
    Rotary,
    SlidingWindow,
)
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.core.optim import AdamW, OptimizerConfig, WarmupStableDecay
from flaxformer_lite.files.data import DataConfig, HubDataset
from flaxformer_lite.files.records import Documents
from flaxformer_lite.files.tokenizers import SentencePiece

NUM_LAYERS = 22


def get_config() -> Config:
    def documents(split: str) -> HubDataset:
        return HubDataset(path="wikimedia/wikipedia", name="20231101.en", split=split, record=Documents())

    return Config(
        model=ModelConfig(
            vocab_size=50_368,  # the last id covers subwords
            d_model=768,
            num_heads=12,
            d_ff=1152,
            num_encoder_layers=NUM_LAYERS,
            num_decoder_layers=0,
            attention=DotProduct(bias=False),
            positions=Rotary(),
            sliding_window=SlidingWindow(
                size=65, layers=tuple(i for i in range(NUM_LAYERS) if i % 3), positions=Rotary(base=10_000.0)
            ),
            feed_forward_bias=False,
            activation="geglu",
            norm=LayerNorm(epsilon=1e-5, bias=False),
            residual=Residual(first="", pre="n", post="da", final="n"),
            dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
            embedding_norm=True,
            scale_embeddings=False,
            head=LanguageModelHead(bias=True, transform="gelu", transform_bias=False, loss_chunk=512),
            initializer=Normal(stddev=0.02),
            dtype="bfloat16",
        ),
        objective=MaskedLM(mask_token=50_367, mask_rate=0.3),
        data=DataConfig(
            train=documents("train[4000:]"),
            eval=documents("train[:4000]"),
            tokenizer=SentencePiece(model_type="bpe", character_coverage=0.9995),
            tokens_per_batch=4_608 * 1_024,
            rows_multiple=4_608,
            bucket_lengths=(1_024,),
            max_source_length=1_024,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b1=0.9, b2=0.98, eps=1e-6),
            schedule=WarmupStableDecay(peak_rate=8e-4, warmup_steps=100, decay_steps=200),
            weight_decay=1e-5,
        ),
        train=TrainConfig(steps=1_000, num_micro_batches=72, log_every=10, eval_every=500, checkpoint_every=500),
    )
