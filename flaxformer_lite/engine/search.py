"""Searches by CTranslate2 that give the answers of a `Decoder`.

CTranslate2 takes one maximum length a call, and each source has its own. So rows whose maximum lengths are alike are asked
together, with the longest of these. A row that went on beyond its own, or reached it, is asked once more, with its own maximum
length, and with room for every answer: those that have ended, and the beams that are open there.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from flaxformer_lite.core.base.bounds import LARGEST
from flaxformer_lite.core.base.groups import groups_of
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.search.answers import NO_ANSWER, Hypothesis
from flaxformer_lite.core.search.forced import Forced
from flaxformer_lite.core.search.request import Request
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.special_ids import check_lengths, check_token_ids
from flaxformer_lite.engine.rules import INSTEAD, not_obeyed, obstacles

NO_PENALTY = 1e-30
"""An exponent of the length penalty that changes no score. At 0 CTranslate2 ends a search at the first finished best beam."""
IMPOSSIBLE = -1e9
"""Scores below it are those of beams that CTranslate2 has forbidden."""


Result = list[tuple[list[str], float]]
"""The answers to a source, each as token ids in decimal digits, the end included, and its score."""


class Sizes(NamedTuple):
    """The room of a model, and of the export of it."""

    source_ids: int
    target_ids: int
    max_positions: int | None
    """The number of the model's positions, which cuts its answers; None: any number."""
    positions: int
    """Positions of the export: the most tokens of a source and of an answer."""
    longest_source: int
    """Tokens of the longest source, `data.max_source_length`."""


class SearchedRow(NamedTuple):
    """A source that is searched for."""

    number: int
    source: list[str]
    prefix: list[str]
    """The token that the answer starts from, and the forced first one."""
    room: int
    """The most tokens that the model chooses; behind them `decode.forced_eos_id` needs no search."""


class EngineSearch:
    """Answers requests as `Decoder.generate` does, without weights of its own.

    Args:
        translator: CTranslate2's, of an export whose tokens are named by their ids.
        config: the settings of decoding. Raises: ValueError for those that CTranslate2 does not obey.
        sizes: what the model has room for.
    """

    def __init__(self, translator: Any, config: DecodeConfig, sizes: Sizes) -> None:
        if wrong := obstacles(config):
            raise ValueError(not_obeyed(wrong))
        longest = min(config.max_length(sizes.longest_source), sizes.max_positions or LARGEST)
        if longest > sizes.positions:
            raise ValueError(
                f"an answer may have {longest} tokens, and the export has {sizes.positions} positions: lower decode.max_new_tokens"
                f"{INSTEAD}"
            )
        self.translator, self.config, self.sizes = translator, config, sizes
        never = {*config.suppress_ids, *range(config.num_ids or sizes.target_ids, sizes.target_ids)}
        self.exponent = 0.0
        if config.beam_size > 1:
            self.exponent = (config.alpha if config.length_penalty == "average" else 0.0) or NO_PENALTY
        self.options: dict[str, Any] = {
            "max_batch_size": config.batch_tokens,
            "batch_type": "tokens",
            "asynchronous": True,
            "beam_size": config.beam_size,
            "length_penalty": self.exponent,
            "suppress_sequences": [[str(i)] for i in sorted(never)] or None,
            "end_token": [str(config.eos_ids[0])],
            "return_end_token": True,
            "return_scores": True,
            "max_input_length": 0,
        }

    def generate(
        self, weights: Any, requests: Sequence[Request | Sequence[int]], progress: ProgressCallback = no_progress
    ) -> list[list[Hypothesis]]:
        """Returns the answers to each request, best first, in their order; `weights` are those of the export.

        Raises: ValueError for a source or a maximum length beyond the positions of the export, an id outside the vocabulary, or
        padding within a source.
        """
        rows = [self.row(number, Request.of(one)) for number, one in enumerate(requests)]
        answers = {row.number: [Hypothesis([], 0.0)] for row in rows}
        asked = [row for row in rows if row.source and row.room > 0]
        done, again = len(rows) - len(asked), list[SearchedRow]()
        for group in groups_of(row.room.bit_length() for row in asked).values():
            alike = [asked[i] for i in group]
            for row, result in self.results(alike, max(row.room for row in alike)):
                if any(len(tokens) > row.room or not self.has_ended(tokens) for tokens, _ in result):
                    again.append(row)
                else:
                    answers[row.number] = self.best(result)
                    done += 1
                progress("decoding", done, len(rows))
        for room, group in groups_of(row.room for row in again).items():
            for row, result in self.results([again[i] for i in group], room, patience=2):
                answers[row.number] = self.best(result)
                done += 1
                progress("decoding", done, len(rows))
        return [answers[row.number] for row in rows]

    def row(self, number: int, request: Request) -> SearchedRow:
        """Returns a request as a row. Raises: ValueError, see `generate`."""
        config, name, source = request.settings or self.config, f"source {request.number(number)}", [*request.source]
        if request.settings is not None and (wrong := obstacles(config)):
            raise ValueError(f"{name}: {not_obeyed(wrong)}")
        if request.forced != Forced():
            raise ValueError(f"{name} has terms or a beginning: leave them out for CTranslate2{INSTEAD}")
        check_token_ids(source, self.sizes.source_ids, f"{name} has")
        check_lengths("source", [len(source)], self.sizes.max_positions, request.number(number))
        limits = (config.max_length(len(source)), request.limit, self.sizes.max_positions)
        limit = min(one for one in limits if one is not None)
        while source and source[-1] == config.pad_id:
            source.pop()
        if config.pad_id in source:
            raise ValueError(f"{name} has decode.pad_id {config.pad_id} within: leave it out{INSTEAD}")
        first = [] if config.forced_bos_id is None else [config.forced_bos_id]
        room = limit - (config.forced_eos_id is not None)
        return SearchedRow(number, [str(i) for i in source], [str(i) for i in (config.start_id, *first)], room)

    def results(
        self, rows: Sequence[SearchedRow], room: int, patience: int = 1
    ) -> Iterator[tuple[SearchedRow, Result]]:
        """Yields each row with CTranslate2's best answers, in the order of the rows.

        room: the most tokens of an answer. patience: a beam search ends with `beam_size` * patience finished answers.
        """
        found = self.translator.translate_batch(
            [row.source for row in rows],
            [row.prefix for row in rows],
            max_decoding_length=room,
            min_decoding_length=min(self.config.min_new_tokens, room),
            patience=patience,
            num_hypotheses=self.config.beam_size * patience if self.config.beam_size > 1 else 1,
            **self.options,
        )
        for row, result in zip(rows, found, strict=True):
            answers = result.result()
            yield row, [*zip(answers.hypotheses, answers.scores, strict=True)]

    def has_ended(self, tokens: Sequence[str]) -> bool:
        return tokens[-1:] == self.options["end_token"]

    def best(self, result: Result) -> list[Hypothesis]:
        """Returns the best answers of a result, which has every answer that the search has ended, and those cut at the end."""
        config, found = self.config, list[tuple[bool, Hypothesis]]()
        at_limit = config.finish_at_limit and config.forced_eos_id is None
        for tokens, score in result:
            log_prob, ended = score * len(tokens) ** self.exponent, self.has_ended(tokens)
            length = len(tokens) + (not ended and not at_limit)
            ids = [int(token) for token in (tokens[:-1] if ended else tokens)]
            found.append((ended, Hypothesis(ids, log_prob / config.divisor(length))))
        finished = [one for ended, one in found if ended]
        is_done = len(finished) >= config.beam_size and not at_limit
        kept = finished if is_done else [one for _, one in found]
        possible = [one for one in kept if math.isfinite(one.score) and one.score > IMPOSSIBLE]
        ranked = sorted(possible, key=lambda one: one.score, reverse=True)
        return [*itertools.islice(ranked, config.num_hypotheses)] or [NO_ANSWER]
