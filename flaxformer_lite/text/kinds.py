"""The kinds of tokenizers: how a config names them, and how a saved one is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator

from flaxformer_lite.text.characters import Bytes, ByteTokenizer, Characters, CharacterTokenizer
from flaxformer_lite.text.subwords import SentencePiece, SentencePieceTokenizer
from flaxformer_lite.text.tokenizer import Tokenizer


def _kinds() -> tuple[type[Tokenizer], ...]:
    from flaxformer_lite.text.json_tokenizer import JsonTokenizer
    from flaxformer_lite.text.marian import MarianTokenizer

    return SentencePieceTokenizer, CharacterTokenizer, ByteTokenizer, JsonTokenizer, MarianTokenizer


def load_tokenizer(folder: Path, stem: str = "tokenizer") -> Tokenizer:
    """The tokenizer that `save` wrote into the folder, whichever kind it is.

    Raises: ValueError if there is none, more than one, or a damaged one.
    """
    files = {folder / (stem + kind.extension): kind for kind in _kinds()}
    there = [path for path in files if path.is_file()]
    if not there:
        raise ValueError(f"{folder}: no tokenizer here; one of {', '.join(path.name for path in files)} is needed")
    if len(there) > 1:
        names = ", ".join(path.name for path in there)
        raise ValueError(f"{folder}: more than one tokenizer, {names}; keep the right one")
    path = there[0]
    try:
        return files[path].from_bytes(path.read_bytes())
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: not a whole tokenizer file ({error}); copy it again or train anew") from error


@dataclass(frozen=True, kw_only=True)
class FromRun:
    """The tokenizer of another run, with its own special ids: for going on with the weights of that run (`train.init_from`)."""

    kind: Literal["from_run"] = "from_run"
    path: str
    """The run folder, or any folder with a tokenizer's file. A copy goes into the new run folder."""
    side: Literal["source", "target"] = "source"
    """Which of the two where that run's target has a tokenizer of its own."""

    def train(self, lines: Iterable[str], vocab_size: int) -> Tokenizer:
        """That tokenizer, which the lines do not change. Raises: ValueError if there is none, or it has too many ids."""
        tokenizer = load_tokenizer(Path(self.path), "tokenizer" if self.side == "source" else "target_tokenizer")
        if tokenizer.vocab_size > vocab_size:
            raise ValueError(
                f"model.vocab_size leaves {vocab_size} ids for text, but the tokenizer of {self.path} has {tokenizer.vocab_size}: "
                "make it as large as that run's"
            )
        return tokenizer


Tokenizers = SentencePiece | Characters | Bytes | FromRun


TokenizerConfig = Annotated[Tokenizers, Discriminator("kind")]


OptionalTokenizerConfig = Annotated[Tokenizers | None, Discriminator("kind")]
