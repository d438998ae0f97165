"""Warnings about text that a tokenizer's vocabulary lacks: each part once, one line for all."""

from collections.abc import Callable, Iterable

from flaxformer_lite.text.tokenizer import Tokenizer

MAX_LISTED = 10
"""Parts that one warning lists."""
MAX_REPORTED = 10_000
"""Parts that are remembered. A server that reads words of strangers would otherwise remember ever more."""


class UnknownText:
    """Reports the parts of texts that a tokenizer's vocabulary lacks: the model cannot tell them apart."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.reported: set[str] = set()

    def report(self, texts: Iterable[str], warn: Callable[[str], None]) -> None:
        """Passes the parts that were not reported before to `warn`, in one line. Looks for no more after `MAX_REPORTED` parts."""
        if len(self.reported) >= MAX_REPORTED:
            return
        found = [part for part in dict.fromkeys(self.tokenizer.unknown_parts(texts)) if part not in self.reported]
        if not found:
            return
        self.reported.update(found)
        more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
        if len(self.reported) >= MAX_REPORTED:
            more += "; further ones are not reported"
        warn(f"not in the vocabulary, so the model cannot read it: {', '.join(map(repr, found[:MAX_LISTED]))}{more}")
