"""Instruction tuning of a small decoder: a user writes a date in one of 14 languages, the assistant answers in ISO form.

Source:   date formats of the Unicode CLDR, in the package; no files, no network. Each pair is a user's message and its answer,
          written by the plain chat template; the loss counts the answer and its end alone.
Command:  python train.py configs/chat_dates.py
          flaxformer-lite evaluate runs/chat_dates
          flaxformer-lite generate runs/chat_dates --chat "Freitag, 20. November 2026"
Expected: on 2,000 held-out dates 0.0089 nats a token of the answers, accuracy of these tokens 0.9972, after 600 steps. 2 min 15 s
          of CPU time with two evaluations, on 2 cores that other work was using too. Each conversation has one question, so a
          second question in a chat is answered badly: `chat_dates_lora.py` goes on from there.
Vary it:  JSONLines(path="chats.jsonl", record=Conversations()) in the place of Dates; --train.steps 800.
"""

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import PRE_NORM, DotProduct, DropoutRates, ModelConfig, Rotary
from flaxformer_lite.core.objectives import Instruction
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.text import Characters
from flaxformer_lite.files.data import DataConfig, Dates


def get_config() -> Config:
    return Config(
        model=ModelConfig(
            vocab_size=160,
            d_model=128,
            num_heads=4,
            d_ff=512,
            num_encoder_layers=0,
            num_decoder_layers=2,
            attention=DotProduct(bias=False),
            positions=Rotary(),
            residual=PRE_NORM,
            dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
            scan_unroll=2,
        ),
        objective=Instruction(),
        data=DataConfig(
            train=Dates(split="train", num_examples=76_800),
            eval=Dates(split="held_out", num_examples=500),
            test=Dates(split="held_out", num_examples=2_000, seed=1),
            tokenizer=Characters(),
            tokens_per_batch=24 * 128,
            rows_multiple=24,
            max_target_length=128,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(), schedule=Cosine(peak_rate=2e-3, warmup_steps=100), weight_decay=0.01
        ),
        decode=DecodeConfig(max_new_tokens=12),
        train=TrainConfig(steps=600, eval_every=300, checkpoint_every=300),
    )
