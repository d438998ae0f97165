"""Rows of a source that the tokenizers cannot read, such as a conversation that the chat template refuses."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flaxformer_lite.core.data.records import Pair
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.files.data.source import MOST_LISTED, DataSource, LocatedPair, tell_bad_rows


class Origin(NamedTuple):
    """The source of records, and its path in the config."""

    source: DataSource
    setting: str | None = None

    def rows(self) -> Iterator[tuple[tuple[str | None, str], LocatedPair]]:
        """Yields each row with its source's rule for bad rows."""
        for at, member in self.source.parts(self.setting or ""):
            rule = member.bad_row_rule(at or None)
            for row in member.located(at or None):
                yield rule, row


def tell_refused(
    records: TokenArrays, tokenizers: Tokenizers, origin: Origin | None, pairs: Sequence[Pair] = (), first: int = 0
) -> None:
    """Treats refused records as bad rows of their source. The source is read again for the files and lines of these rows.

    pairs: the rows, if `origin` is None. first: the number of the first record among those of the source.

    Raises: ValueError if there are any, and the source does not drop them.
    """
    numbers = set(records.labelled(tokenizers.refused).tolist()) if tokenizers.refused else set()
    if not numbers:
        return
    rules: dict[tuple[str | None, str], list[LocatedPair]] = {}
    given = (((None, "error"), LocatedPair(pair, ("record", "record"), number)) for number, pair in enumerate(pairs, 1))
    for number, (rule, row) in enumerate(given if origin is None else origin.rows(), -first):
        if number in numbers:
            rules.setdefault(rule, []).append(row)
            numbers.remove(number)
            if not numbers:
                break
    for (setting, treatment), rows in rules.items():
        listed = []
        for row in rows[:MOST_LISTED]:
            assert isinstance(row.pair, Pair)
            listed.append(f"{row.files[1]}:{row.number}: {tokenizers.refusal(row.pair)}")
        tell_bad_rows(treatment, len(rows), listed, setting)
