"""Makes tests/fixtures/tokenizer_classes.json: what transformers makes of folders that hardly say more than a tokenizer's class.

It imports only the other side (transformers), never flaxformer_lite. By hand:

    HF_HUB_OFFLINE=1 python -m tests.makers.make_class_reference
"""

import json
import tempfile
from pathlib import Path

import sentencepiece
import tokenizers
import transformers

from tests.support.paths import FIXTURES
from tests.support.tokenizer_classes import CASES, said_by_library, write_class_case


def main() -> None:
    found = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as place:
            write_class_case(case, Path(place, "folder"))
            found[case.label] = said_by_library(case.name, Path(place, "folder"))
        print(case.label, len(found[case.label]["special"]), found[case.label]["framed"][0])
    assert len(found) == len(CASES)
    versions = {module.__name__: module.__version__ for module in (transformers, tokenizers, sentencepiece)}
    document = {"versions": versions, "cases": found}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    (FIXTURES / "tokenizer_classes.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
