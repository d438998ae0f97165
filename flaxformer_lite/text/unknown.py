"""What texts have that a tokenizer does not know: told once, in one line."""

from collections.abc import Callable, Iterable

from flaxformer_lite.text.tokenizer import Tokenizer

MOST = 10
"""How many of them a line names."""


class UnknownText:
    """Tells what of some texts is not in a tokenizer's vocabulary, so that the model does not see what it is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.told: set[str] = set()

    def report(self, texts: Iterable[str], warn: Callable[[str], None]) -> None:
        """Tells `warn` in one line what has not been told before."""
        found = [part for part in dict.fromkeys(self.tokenizer.unknown_parts(texts)) if part not in self.told]
        if not found:
            return
        self.told.update(found)
        more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
        warn(f"not in the vocabulary, so the model cannot read it: {', '.join(map(repr, found[:MOST]))}{more}")
