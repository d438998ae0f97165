"""Rows of a source that the tokenizers cannot read, such as a conversation that the chat template refuses, or not as a whole."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.objectives import BaseObjective
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.pairs import Extent, Pair
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
    """Treats refused records as bad rows of their source, and warns of those that were read in part.

    The source is read again for the files and lines of these rows.

    pairs: the rows, if `origin` is None. first: the number of the first record among those of the source.

    Raises: ValueError if there are refused records, and the source does not drop them.
    """
    refused = set(np.flatnonzero(records.extents == Extent.REFUSED).tolist())
    partly = set(np.flatnonzero(records.extents == Extent.PARTLY).tolist())
    for (setting, treatment), rows in rows_of_records(refused, origin, pairs, first).items():
        tell_bad_rows(treatment, len(rows), reasons(rows, tokenizers), setting)
    for rows in rows_of_records(partly, origin, pairs, first).values():
        listed = "; ".join(map(str, reasons(rows, tokenizers)))
        warn_once(f"{len(rows)} rows were not read as a whole: {listed}")


def check_labels(
    records: TokenArrays, objective: BaseObjective, origin: Origin | None, pairs: Sequence[Pair] = ()
) -> None:
    """Raises: Mistake, with file and line, for the first record whose label the objective does not know."""
    if objective.reads != "classes":
        return
    labels = list(records.labels)
    for label in dict.fromkeys(labels):
        try:
            objective.label_value(label)
        except ValueError as error:
            (rule_and_rows,) = rows_of_records({labels.index(label)}, origin, pairs).items()
            (setting, _), (row,) = rule_and_rows
            mistake = Mistake.of(error, file=row.files[1], line=row.number, subject="it")
            raise mistake.spelled({"data.train.record": f"{setting or 'data.train'}.record"}) from None


RowRule = tuple[str | None, str]
"""The path of a source in the config, and its treatment of bad rows."""


def rows_of_records(
    numbers: set[int], origin: Origin | None, pairs: Sequence[Pair], first: int = 0
) -> dict[RowRule, list[LocatedPair]]:
    """Returns the rows of the records with these numbers, from 0, by the rule of their source.

    The further arguments are those of `tell_refused`.
    """
    rules: dict[RowRule, list[LocatedPair]] = {}
    given = (((None, "error"), LocatedPair(pair, ("record", "record"), number)) for number, pair in enumerate(pairs, 1))
    rows = enumerate(given if origin is None else origin.rows(), -first)
    wanted = (row for number, row in rows if number in numbers)
    for rule, row in itertools.islice(wanted, len(numbers)):
        rules.setdefault(rule, []).append(row)
    return rules


def reasons(rows: Sequence[LocatedPair], tokenizers: Tokenizers) -> list[Mistake]:
    """Returns what is wrong with the first rows."""
    listed = []
    for row in rows[:MOST_LISTED]:
        assert isinstance(row.pair, Pair)
        listed.append(Mistake(tokenizers.refusal(row.pair) or "", row.files[1], row.number))
    return listed
