"""LoRA on a decoder: adapters teach the model of `chat_dates` to answer further questions in a conversation.

Source:   lab/recipes.md has the lines of Python that write 3,000 conversations of three turns: a date, then two of "year",
          "month" and "day". The base saw conversations of one turn alone.
Command:  python train.py configs/chat_dates.py
          python train.py configs/chat_dates_lora.py
          flaxformer-lite generate runs/chat_dates_lora --chat "5 maggio 2031" year month
Expected: on 300 held-out conversations, after 200 steps, one seed: accuracy of the answers' tokens 0.973, loss 0.082; before, 0.710
          and 2.646. Right answers to the first, second and third question: 27, 30 and 20 of 30; before, 58, 0 and 0 of 60.
          75 seconds of CPU time, on 2 cores that other work was using too.
Vary it:  --model.lora.rank 4
"""

import dataclasses

from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.model import LoRA
from flaxformer_lite.core.optim import Cosine
from flaxformer_lite.files.data import JSONLines
from flaxformer_lite.files.records import Conversations
from flaxformer_lite.files.tokenizers import FromRun


def get_config() -> Config:
    base = load_config("chat_dates")
    lora = LoRA(rank=16, alpha=32, targets=("decoder/layers/*",))
    return dataclasses.replace(
        base,
        model=dataclasses.replace(base.model, lora=lora),
        data=dataclasses.replace(
            base.data,
            train=JSONLines(path="chats/train.jsonl", record=Conversations()),
            eval=JSONLines(path="chats/valid.jsonl", record=Conversations()),
            test=None,
            tokenizer=FromRun(path="runs/chat_dates"),
            tokens_per_batch=16 * 192,
            rows_multiple=16,
            max_target_length=192,
        ),
        optimizer=dataclasses.replace(base.optimizer, schedule=Cosine(peak_rate=5e-3, warmup_steps=20)),
        train=TrainConfig(steps=200, eval_every=200, checkpoint_every=200, init_from="runs/chat_dates"),
    )
