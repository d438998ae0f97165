"""A character language model on the text of Python's own help topics: English and code, no files, no network.

Source:   the shape and the budget of nanoGPT's character model for a CPU: 4 layers, 4 heads, width 128, 64 characters of
          context, 12 rows a step, 3 minutes. It reports a validation loss of 1.88 on tiny Shakespeare; that is another text, so
          the two figures cannot be compared. Rate, decay and rotary positions are a first choice here, not tuned.
Command:  python train.py configs/char_lm.py
          flaxformer-lite evaluate runs/char_lm
Expected: 1.388 nats a character (perplexity 4.01, accuracy 0.606) on the held-out topics of Python 3.11, after 1,500 steps, 2.65
          epochs, 1.15 million characters. 176 seconds of CPU time in all, so under 3 minutes on 2 free cores; 6.5 minutes on 2
          cores that other work was using too. On a slower machine 1.411 in three minutes of CPU time, where a plain GPT of the
          same shape in PyTorch reached 1.491 (benchmarks/README.md; one seed).
Vary it:  --train.steps 3000; put PlainText(path=…) in the place of PythonDocs for text of your own.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import PRE_NORM, DotProduct, DropoutRates, ModelConfig, Rotary
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.core.text import Characters
from flaxformer_lite.files.data import DataConfig, PythonDocs


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            vocab_size=128,
            d_model=128,
            num_heads=4,
            d_ff=512,
            num_encoder_layers=0,
            num_decoder_layers=4,
            attention=DotProduct(bias=False),
            positions=Rotary(),
            activation="gelu",
            residual=PRE_NORM,
            dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
            scan_unroll=4,
        ),
        objective=CausalLM(),
        data=DataConfig(
            train=PythonDocs(split="train"),
            eval=PythonDocs(split="held_out"),
            tokenizer=Characters(),
            tokens_per_batch=12 * 64,
            rows_multiple=12,
            bucket_lengths=(64,),
            max_target_length=64,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.99),
            schedule=Cosine(peak_rate=3e-3, warmup_steps=100, final_rate_fraction=0.1),
            weight_decay=0.1,
        ),
        train=TrainConfig(steps=1_500, log_every=100, eval_every=500, checkpoint_every=500),
    )
