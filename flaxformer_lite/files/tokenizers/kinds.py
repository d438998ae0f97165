"""All kinds of tokenizers: the union of their configs, and loading a saved tokenizer of any kind.

A config has a field `kind` and the method `train(lines, vocab_size)`: the same lines in the same order give the same tokenizer.
"""

import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.remote_files import local_files
from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.text import Languages, LanguageTokenizers, Tokenizer, Tokenizers
from flaxformer_lite.core.text.characters import Bytes, ByteTokenizer, Characters, CharacterTokenizer
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import (
    AddedPieces,
    MarianTokenizer,
    SentencePiece,
    SentencePieceTokenizer,
    VocabularyPieces,
)

TOKENIZER_CLASSES: tuple[type[Tokenizer], ...] = (
    SentencePieceTokenizer,
    AddedPieces,
    VocabularyPieces,
    CharacterTokenizer,
    ByteTokenizer,
    JsonTokenizer,
    MarianTokenizer,
)
"""The classes that `load_tokenizer` knows, by the extension of their files."""

LANGUAGE_FILES = ("tokenizer.*.hf.json",)
"""The files of the tokenizers that languages have of their own: `tokenizer.CODE` and the extension."""
CHAT_TEMPLATE = "chat_template.jinja"
"""The chat template of a run, which comes before one that came with imported weights."""
CHAT_TEMPLATES = (CHAT_TEMPLATE, "additional_chat_templates/*.jinja")
"""The files of templates: the one named default, and those with other names, such as `tool_use`."""
HUB_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "spm.model",
    *CHAT_TEMPLATES,
)
"""The files of a tokenizer in a Hugging Face folder. A run has those of its tokenizer in its folder `huggingface`."""
TEMPLATE_FILES = (*CHAT_TEMPLATES, *(f"huggingface/{name}" for name in HUB_FILES))
"""The files of a run that a chat template and its special tokens are read from, and those of an imported tokenizer."""
SENTENCE_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "[0-9]_*/config.json",
)
"""The files of sentence embeddings in a Hugging Face folder."""


def copy_hub_files(run: Path, output: Path) -> list[str]:
    """Copies the Hugging Face files of a run's tokenizer into a folder, unchanged. Returns their names.

    The run's own chat templates take the place of theirs.
    """
    templates = copy_files(run, output, CHAT_TEMPLATES)
    theirs = [file for file in HUB_FILES if not templates or file not in CHAT_TEMPLATES]
    return copy_files(run / "huggingface", output, theirs) + templates


def copy_files(source: Path, output: Path, patterns: Iterable[str], skip: Collection[str] = ()) -> list[str]:
    """Copies the files of a folder that match a pattern, except those to skip. Returns their names."""
    paths = list[str]()
    for pattern in patterns:
        paths += [str(file.relative_to(source)) for file in sorted(source.glob(pattern)) if file.is_file()]
    names = [name for name in paths if name not in skip]
    for name in names:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, output / name)
    return names


def save_tokenizer(tokenizer: Tokenizer, folder: Path, stem: str = "tokenizer") -> Path:
    """Writes a tokenizer into the folder, completely or not at all, and returns its file. Creates the folder if needed."""
    path = folder / (stem + tokenizer.extension)
    with atomic_write(path) as unfinished:
        unfinished.write_bytes(tokenizer.to_bytes())
    return path


def save_tokenizers(tokenizers: Tokenizers, folder: Path, *, two: bool | None = None) -> None:
    """Writes the tokenizers; that of the target first, so that a folder with that of the source has both.

    two: whether the target gets a file of its own. None: it gets one if it is another tokenizer.
    """
    if tokenizers.target is not tokenizers.source if two is None else two:
        save_tokenizer(tokenizers.target, folder, "target_tokenizer")
    save_tokenizer(tokenizers.source, folder)


def load_tokenizer(folder: Path, stem: str = "tokenizer") -> Tokenizer:
    """Returns the tokenizer that `save_tokenizer` wrote. Raises: ValueError for none, several, or a damaged one."""
    files = {folder / (stem + kind.extension): kind for kind in TOKENIZER_CLASSES}
    saved = [path for path in files if path.is_file()]
    if not saved:
        raise ValueError(f"{folder}: no tokenizer here; one of {', '.join(path.name for path in files)} is needed")
    if len(saved) > 1:
        raise ValueError(
            f"{folder}: more than one tokenizer, {', '.join(path.name for path in saved)}; delete all but one"
        )
    path = saved[0]
    try:
        return files[path].from_bytes(path.read_bytes())
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path}: not a whole tokenizer file ({error}); copy it again or train a new one") from error


def load_language_tokenizers(folder: Path, codes: Iterable[str]) -> dict[str, Tokenizer]:
    """Returns the tokenizers that languages have of their own. Raises: ValueError as `load_tokenizer`."""
    ends = [kind.extension for kind in TOKENIZER_CLASSES]
    saved = [code for code in codes if any((folder / f"tokenizer.{code}{end}").is_file() for end in ends)]
    return {code: load_tokenizer(folder, f"tokenizer.{code}") for code in saved}


def load_tokenizers(folder: Path, *, two: bool | None = None) -> Tokenizers:
    """Returns the tokenizers that `save_tokenizers` wrote into the folder.

    two: whether the target has one of its own. None: it has one if its file exists.

    Raises: ValueError if one is missing or damaged.
    """
    source = load_tokenizer(folder)
    two = any(folder.glob("target_tokenizer.*")) if two is None else two
    return Tokenizers(source, load_tokenizer(folder, "target_tokenizer") if two else source)


def load_run_tokenizers(
    folder: Path, vocab_sizes: tuple[int, int], *, two: bool, languages: Languages | None
) -> Tokenizers:
    """Returns the tokenizers of a run that has these languages. `two`: see `load_tokenizers`.

    Raises: ValueError if one is missing or damaged, or has ids past the `vocab_sizes`.
    """
    tokenizers = load_tokenizers(folder, two=two)
    tokenizers.check_ids(vocab_sizes)
    if languages is None:
        return tokenizers
    added = load_language_tokenizers(folder, languages.codes)
    for tokenizer in added.values():
        Tokenizers(tokenizer, tokenizer).check_ids(vocab_sizes)
    return LanguageTokenizers.of(tokenizers, languages, added)


@dataclass(frozen=True, kw_only=True)
class FromRun(Checked, at="data.tokenizer"):
    """The tokenizer of another run, with its own special ids, to continue with that run's weights (`train.init_from`)."""

    kind: Literal["from_run"] = "from_run"
    path: str
    """The run folder, or any folder or URL with a tokenizer file. The new run folder gets a copy."""
    side: Literal["source", "target"] = "source"
    """The side of that run to copy the tokenizer from, if its target has a tokenizer of its own."""

    def train(self, lines: Iterable[str], vocab_size: int) -> Tokenizer:
        """Returns that tokenizer; the lines are not used. Raises: ValueError without a tokenizer, or if it has too many ids."""
        stem = "tokenizer" if self.side == "source" else "target_tokenizer"
        with local_files(self.path, (stem + kind.extension for kind in TOKENIZER_CLASSES)) as folder:
            tokenizer = load_tokenizer(folder, stem)
        needed = tokenizer.largest_id + 1
        if needed > vocab_size:
            raise ValueError(
                f"model.vocab_size leaves {vocab_size} ids for text, but the tokenizer of {self.path} has {needed}: "
                "set model.vocab_size to that run's"
            )
        return tokenizer

    def copy_files(self, target: object, output: Path) -> None:
        """Copies the files that belong to that run's tokenizer, such as its chat template, into a folder `huggingface`.

        `target` is the config of the target's tokenizer, if it has one of its own. Files of both sides are not copied for one side.
        """
        if self.side == "source" and target in (None, FromRun(path=self.path, side="target")):
            targets = (f"target_tokenizer{kind.extension}" for kind in TOKENIZER_CLASSES)
            names = (*targets, *LANGUAGE_FILES, *TEMPLATE_FILES)
            with local_files(self.path, names) as folder:
                if any(folder.glob("target_tokenizer.*")) == (target is not None):
                    copy_hub_files(folder, output)
                    copy_files(folder, output.parent, LANGUAGE_FILES)


TokenizerConfig = SentencePiece | Characters | Bytes | FromRun
OptionalTokenizerConfig = TokenizerConfig | None
