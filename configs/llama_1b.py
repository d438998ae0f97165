"""A Llama of 1.1 billion parameters: rotary positions, RMSNorm, gated feed-forward, grouped key/value heads, no biases.

Source:   the shape and recipe of TinyLlama, Zhang et al. 2024, arXiv:2401.02385, sections 2.2 and 2.3: 22 layers, width 2,048, 32
          heads on 4 key/value heads, 2 million tokens a step, AdamW with b2 0.95, 4e-4 down to 4e-5, decay 0.1. The architecture is
          that of Touvron et al. 2023, arXiv:2302.13971. The text is another: 10 billion tokens of FineWeb-Edu.
Command:  pip install "flaxformer_lite[hub]"; python train.py configs/llama_1b.py
          flaxformer-lite evaluate runs/llama_1b
Expected: in the paper, after 3 trillion tokens: 59.2 on HellaSwag and 53.0 on average over seven common-sense tasks; 90 days on 16
          A100 GPUs. One pass over the text here is 5,000 steps, which is where this config stops. Not run here; 1.1 billion
          parameters.
Vary it:  the tokens are kept on disk, 2 bytes each (docs/data.md); split="train[2000:200000]" is a fiftieth. `import hf` brings
          TinyLlama's own weights.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import PRE_NORM, DotProduct, DropoutRates, ModelConfig, Normal, RMSNorm, Rotary
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.files.data import DataConfig, HubDataset
from flaxformer_lite.files.records import Documents
from flaxformer_lite.files.tokenizers import SentencePiece


def get_config() -> Config:
    def documents(split: str) -> HubDataset:
        return HubDataset(path="HuggingFaceFW/fineweb-edu", name="sample-10BT", split=split, record=Documents())

    return Config(
        model=ModelConfig(
            vocab_size=32_000,
            d_model=2048,
            num_heads=32,
            d_ff=5632,
            num_encoder_layers=0,
            num_decoder_layers=22,
            attention=DotProduct(num_kv_heads=4, bias=False),
            positions=Rotary(),
            feed_forward_bias=False,
            activation="swiglu",
            norm=RMSNorm(epsilon=1e-5),
            residual=PRE_NORM,
            dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
            scale_embeddings=False,
            share_target_output=False,
            initializer=Normal(stddev=0.02),
            dtype="bfloat16",
        ),
        objective=CausalLM(),
        data=DataConfig(
            train=documents("train[2000:]"),
            eval=documents("train[:2000]"),
            tokenizer=SentencePiece(model_type="bpe", character_coverage=0.9995),
            tokens_per_batch=1024 * 2048,
            rows_multiple=1024,
            bucket_lengths=(2048,),
            max_target_length=2048,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.95),
            schedule=Cosine(peak_rate=4e-4, warmup_steps=2_000, final_rate_fraction=0.1),
            weight_decay=0.1,
        ),
        train=TrainConfig(steps=5_000, num_micro_batches=16, log_every=10, eval_every=500, checkpoint_every=500),
    )
