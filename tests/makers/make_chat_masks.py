"""Makes tests/fixtures/chat_masks.json: token ids and masks of answers by transformers, for the templates of `tests.support.chats`.

It computes with the other side alone (transformers). By hand, in the root of the repository:

    pip install transformers jinja2
    PYTHONPATH=. python tests/makers/make_chat_masks.py tests/fixtures/chat_masks.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from tests.support.chats import NAMES, TEMPLATES, family_tokenizer

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Is an all?"}, {"role": "assistant", "content": "Ha, it is."}],
    [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": "One\n\ntwo"},
        {"role": "assistant", "content": "Hé 🙂\n"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": " t an"},
        {"role": "assistant", "content": "\nH all"},
    ],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "is"},
        {"role": "assistant", "content": "an"},
        {"role": "user", "content": "unanswered"},
    ],
]


def main() -> None:
    library, rows = PreTrainedTokenizerFast(tokenizer_object=family_tokenizer(), **NAMES), []
    for name, template in TEMPLATES.items():
        for messages in CONVERSATIONS:
            found = library.apply_chat_template(
                messages, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
            )
            rows.append(
                {"template": name, "messages": messages, "ids": found["input_ids"], "mask": found["assistant_masks"]}
            )
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    Path(sys.argv[1]).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
