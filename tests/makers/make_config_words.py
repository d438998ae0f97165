"""Makes flaxformer_lite/interop/hf/words.txt: the words of config.json that transformers reads, of each family.

They are the fields of a family's config classes, and whatever its code reads of a config: attributes, and keys of its groups.
Nothing is imported: the source is read, also of releases that no longer run. Words of earlier releases stay in the file.
By hand, with the folders of some releases, each the folder `transformers` of a wheel:

    python -m tests.makers.make_config_words FOLDER...

The file has a line for each family; a new one is added by hand, with the name alone.
"""

import sys
import textwrap
from pathlib import Path

from flaxformer_lite.interop.hf.options import library_options
from tests.support.library_words import EVERY, words
from tests.support.paths import ROOT

WORDS = ROOT / "flaxformer_lite/interop/hf/words.txt"


def main(libraries: list[Path]) -> None:
    before = library_options()
    lines = {name: {*known}.union(*(words(library, name) for library in libraries)) for name, known in before.items()}
    head = "# The words of config.json that transformers reads. Made by tests/makers/make_config_words.py"
    paragraphs = [
        textwrap.fill(
            f"{name}: {' '.join(sorted(found - (lines[EVERY] if name != EVERY else set())))}",
            128,
            subsequent_indent="  ",
        )
        for name, found in lines.items()
    ]
    WORDS.write_text("\n".join([head, *paragraphs]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
