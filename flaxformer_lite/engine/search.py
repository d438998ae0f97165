"""Searches by CTranslate2 that give the answers of a `Decoder`.

CTranslate2 takes one maximum length a call, and each source has its own. So rows whose maximum lengths are alike are asked
together, with the longest of these. A row whose answer reaches or passes its own maximum is searched again with exactly that
length, and with room for every answer: those that have ended, and the beams that are open there.

A beam search of CTranslate2 stops at a number of finished answers. If `early_stopping` is False, open beams decide when a search
stops, and CTranslate2 shows open beams only at the maximum length. So such a row is searched without stopping, up to a length
where its open beams show that our own search has stopped by then. If all lengths at which our own search may have stopped give the
same answers, the row is done; else a search to one of these lengths tells more (`settled`).
"""

import copy
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from flaxformer_lite.core.base.bounds import LARGEST
from flaxformer_lite.core.base.groups import groups_of
from flaxformer_lite.core.base.mistake import known
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.search import Forced, Request
from flaxformer_lite.core.search.answers import NO_ANSWER, Hypothesis, Watch
from flaxformer_lite.core.search.settings import DecodeConfig, check_vocabulary
from flaxformer_lite.core.text.special_ids import check_length, check_token_ids
from flaxformer_lite.engine.rules import CannotAnswer, check_obeyed

NO_PENALTY = 1e-30
"""An exponent of the length penalty that changes no score. At 0 CTranslate2 ends a search at the first finished best beam."""
IMPOSSIBLE = -1e9
"""Log-probabilities below it are those of beams that CTranslate2 has forbidden."""
MOST_SECONDS = 1.0
"""The longest wait for a thread of CTranslate2 to drop what it has called."""
SearchResult = list[tuple[list[str], float]]
"""The answers to a source, each as token ids in decimal digits, the end included, and its log-probability."""


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
    """The token that the answer starts from, and the forced first one; [] for a prompt, which the answer continues."""
    room: int
    """The most tokens that the model chooses; behind them `decode.forced_eos_id` needs no search."""
    early_end: float | None = None
    """The log-probability of an end right behind the forced token, where it is among the best beams: see `with_early_ends`."""


class SearchedAnswer(NamedTuple):
    """An answer that a search of CTranslate2 has found."""

    ids: list[str]
    """Without the end."""
    length: int
    """The number of its tokens, the end included."""
    log_prob: float
    score: float


Shown = tuple[list[SearchedAnswer], list[SearchedAnswer]]
"""The answers of a search that count as finished, and the others, which were cut at its maximum length."""


class EngineSearch:
    """Answers requests as `Decoder.generate` does, without weights of its own.

    Args:
        translator: CTranslate2's, of an export whose tokens are named by their ids.
        config: the settings of decoding.
        sizes: what the model has room for.

    Raises: CannotAnswer for settings that CTranslate2 does not obey; ValueError for an id outside the vocabulary.
    """

    kind: ClassVar[str] = "Translator"

    def __init__(self, translator: Any, config: DecodeConfig, sizes: Sizes) -> None:
        check_vocabulary(config, sizes.target_ids)
        check_obeyed(config, self.kind)
        longest = min(config.max_length(sizes.longest_source), sizes.max_positions or LARGEST)
        if longest > sizes.positions and self.kind == "Translator":
            raise CannotAnswer(
                f"an answer may have {longest} tokens, and the export has {sizes.positions} positions: lower decode.max_new_tokens"
            )
        self.translator = translator
        self.config = config
        self.sizes = sizes
        self.beams = config.beam_size
        self.ends = [str(i) for i in dict.fromkeys(config.eos_ids)]
        self.exponent = 0.0
        if self.beams > 1:
            alpha = config.alpha if config.length_penalty == "average" else 0.0
            self.exponent = alpha or NO_PENALTY
        beyond_numbered = range(config.num_ids or sizes.target_ids, sizes.target_ids)
        suppressed = sorted({*config.suppress_ids, *beyond_numbered})
        self.batches: dict[str, Any] = {
            "max_batch_size": config.batch_tokens,
            "batch_type": "tokens",
            "asynchronous": True,
        }
        self.options: dict[str, Any] = {
            "beam_size": self.beams,
            "length_penalty": self.exponent,
            "suppress_sequences": [[str(i)] for i in suppressed] or None,
            "end_token": self.ends,
            "return_end_token": True,
            "return_scores": True,
            **self.batches,
        }

    def generate(
        self, weights: Any, requests: Sequence[Request | Sequence[int]], progress: ProgressCallback = no_progress
    ) -> list[list[Hypothesis]]:
        """Returns the answers to each request, best first, in their order; `weights` are those of the export.

        Raises: ValueError for a source beyond the model's positions, an id outside the vocabulary, or padding within a source.
        """
        rows = [self.row(number, Request.of(one)) for number, one in enumerate(requests)]
        answers = dict[int, list[Hypothesis]]()
        to_search = list[SearchedRow]()
        for row in rows:
            if row.source and row.room > 0:
                to_search.append(row)
            else:
                answers[row.number] = [Hypothesis([], 0.0)]
        asked = self.with_early_ends(to_search)
        by_open_beams = self.beams > 1 and self.config.early_stopping is False
        found = self.until_settled(asked) if by_open_beams else self.until_whole(asked)
        for row, ranked in found:
            answers[row.number] = ranked
            progress("decoding", len(answers), len(rows))
        return [answers[row.number] for row in rows]

    def until_whole(self, asked: Sequence[SearchedRow]) -> Iterator[tuple[SearchedRow, list[Hypothesis]]]:
        """Yields each row with the answers of a search that stops at `beam_size` of them."""
        left = list[SearchedRow]()
        by_room = groups_of((row.room.bit_length(), row.early_end is None) for row in asked)
        for numbers in by_room.values():
            alike = [asked[i] for i in numbers]
            room = max(row.room for row in alike)
            most = self.beams if alike[0].early_end is None else self.beams - 1
            for row, result in self.results(alike, room, most):
                has_one_answer = self.beams == 1 and row.room == room
                have_ended = all(tokens[-1] in self.ends or len(tokens) < room for tokens, _ in result)
                have_room = all(len(tokens) <= row.room for tokens, _ in result)
                if has_one_answer or (have_ended and have_room):
                    yield row, self.best(row, result)
                else:
                    left.append(row)
        by_room = groups_of((row.room, row.early_end is None) for row in left)
        for numbers in by_room.values():
            alike = [left[i] for i in numbers]
            for row, result in self.results(alike, alike[0].room, 2 * self.beams):
                yield row, self.best(row, result)

    def until_settled(self, asked: Sequence[SearchedRow]) -> Iterator[tuple[SearchedRow, list[Hypothesis]]]:
        """Yields each row with its answers under `early_stopping` False: see `settled`."""
        shown = {row.number: dict[int, Shown]() for row in asked}
        left = list[tuple[SearchedRow, int]]()
        for row in asked:
            first_limit = 4 * (len(row.source) // 4 + 2)
            left.append((row, min(row.room, first_limit)))
        while left:
            searched, left = left, []
            by_limit = groups_of((limit, row.early_end is None) for row, limit in searched)
            for (limit, _), numbers in by_limit.items():
                alike = [searched[i][0] for i in numbers]
                for row, result in self.results(alike, limit, self.beams * limit):
                    shown[row.number][limit] = self.parted(row, result)
                    settled = self.settled(row, shown[row.number])
                    if isinstance(settled, int):
                        left.append((row, settled))
                    else:
                        yield row, settled

    def settled(self, row: SearchedRow, shown: Mapping[int, Shown]) -> list[Hypothesis] | int:
        """Returns a row's answers under `early_stopping` False, or the maximum length of a search that tells more.

        shown: the results of searches without stopping, by their maximum lengths, where such a search shows its open beams. At each
        length before the maximum, the beams that became a later answer were open, and at least as probable as that answer.
        """
        config = self.config
        limit = max(shown)
        finished, cut = shown[limit]
        may_stop = list[tuple[int, list[SearchedAnswer]]]()
        best = list[SearchedAnswer]()
        for length in range(1, limit + 1):
            ended = [answer for answer in finished if answer.length == length]
            best = by_score(best + ended)[: self.beams]
            if len(best) < self.beams:
                continue
            later, open_beams = shown.get(length, shown[limit])
            still_open = [answer for answer in later if answer.length >= length + config.finish_at_limit]
            best_open = max((beam.log_prob for beam in open_beams + still_open), default=-math.inf)
            if best[-1].score >= best_open / config.divisor(length):
                may_stop.append((length, best[: config.num_hypotheses]))
                if length in shown:
                    break
        else:
            if limit < row.room:
                return min(row.room, limit + limit // 2)
            may_stop.append((limit, by_score([*best, *cut])[: config.num_hypotheses]))
        answers = may_stop[0][1]
        same = [length for length, _ in itertools.takewhile(lambda stop: stop[1] == answers, may_stop)]
        if len(same) == len(may_stop):
            return as_hypotheses(answers)
        return same[-1]

    def row(self, number: int, request: Request) -> SearchedRow:
        """Returns a request as a row. Raises: ValueError, see `generate`; CannotAnswer for what CTranslate2 does not obey."""
        config = request.settings or self.config
        source = list(request.source)
        if request.settings is not None:
            check_vocabulary(config, self.sizes.target_ids)
            check_obeyed(config, self.kind)
        with known(subject=f"source {request.number(number)}"):
            if request.forced != Forced():
                raise CannotAnswer("has terms or a beginning: leave them out for CTranslate2")
            check_token_ids(source, self.sizes.source_ids, "has")
            check_length(len(source), self.sizes.max_positions)
            tokens = unpadded(source, config.pad_id)
        limits = (config.max_length(len(source)), request.limit, self.sizes.max_positions)
        limit = min(limit for limit in limits if limit is not None)
        prefix = [config.start_id]
        if config.forced_bos_id is not None:
            prefix.append(config.forced_bos_id)
        room = limit - (config.forced_eos_id is not None)
        return SearchedRow(number, list(map(str, tokens)), list(map(str, prefix)), room)

    def with_early_ends(self, rows: Sequence[SearchedRow]) -> list[SearchedRow]:
        """Returns the rows, with `early_end` where a beam other than the best may end directly after the forced token.

        There CTranslate2 forbids that beam. So such a row is searched with no end there (`results`), and the forbidden answer is
        added to its answers (`best`).
        """
        long = [row for row in rows if len(row.prefix) > 1 and row.room > 1]
        if self.beams == 1 or self.config.min_new_tokens > 1 or not long:
            return list(rows)
        forbidden = list[SearchedRow]()
        for row, result in self.results(long, 2, self.beams):
            if any(log_prob < IMPOSSIBLE for _, log_prob in result):
                forbidden.append(row)
        scored = self.translator.score_batch(
            [row.source for row in forbidden],
            [[*row.prefix, *self.ends] for row in forbidden],
            max_input_length=0,
            **self.batches,
        )
        ends = dict[int, float]()
        for row, score in zip(forbidden, scored, strict=True):
            ends[row.number] = score.result().log_probs[1]
        return [row._replace(early_end=ends.get(row.number)) for row in rows]

    def results(self, rows: Sequence[SearchedRow], room: int, most: int) -> Iterator[tuple[SearchedRow, SearchResult]]:
        """Yields each row with CTranslate2's best answers, in the order of the rows, which all have an `early_end` or none.

        room: the most tokens of an answer. most: the finished answers at which a search with beams ends.
        """
        fewest = self.config.min_new_tokens
        if rows[0].early_end is not None:
            fewest = max(fewest, 2)
        found = self.translator.translate_batch(
            [row.source for row in rows],
            [row.prefix for row in rows],
            max_decoding_length=room,
            min_decoding_length=min(fewest, room),
            max_input_length=0,
            **self.finishing(most),
            **self.options,
        )
        for row, answer in zip(rows, found, strict=True):
            result = answer.result()
            yield row, self.result(result.hypotheses, result.scores)

    def finishing(self, most: int) -> dict[str, object]:
        """Returns the arguments that end a search with beams at `most` finished answers, all of which it returns."""
        if self.beams == 1:
            return {}
        return {"patience": most / self.beams, "num_hypotheses": most}

    def result(self, answers: list[list[str]], scores: list[float]) -> SearchResult:
        return [(ids, score * len(ids) ** self.exponent) for ids, score in zip(answers, scores, strict=True)]

    def best(self, row: SearchedRow, result: SearchResult) -> list[Hypothesis]:
        """Returns the best answers of a result, which has every answer that the search has ended, and those cut at the end."""
        finished, cut = self.parted(row, result)
        best = by_score(finished if len(finished) >= self.beams else finished + cut)
        return as_hypotheses(best[: self.config.num_hypotheses])

    @property
    def at_limit(self) -> bool:
        """Whether answers at their maximum length are finished without an end."""
        return self.config.finish_at_limit and self.config.forced_eos_id is None

    def parted(self, row: SearchedRow, result: SearchResult) -> Shown:
        """Returns the answers of a result that count as finished, and the others."""
        finished, cut = list[SearchedAnswer](), list[SearchedAnswer]()
        if row.early_end is not None:
            others = math.log1p(-math.exp(row.early_end))  # CTranslate2 has divided by their probability
            result = [(tokens, log_prob + others) for tokens, log_prob in result]
            result.append(([row.prefix[1], *self.ends], row.early_end))
        for tokens, log_prob in result:
            if not IMPOSSIBLE < log_prob < math.inf:
                continue
            length = len(tokens)
            has_end = tokens[-1] in self.ends
            is_finished = has_end or (self.at_limit and length == row.room)
            score = log_prob / self.config.divisor(length + (not is_finished))
            answer = SearchedAnswer(tokens[: length - has_end], length, log_prob, score)
            if is_finished:
                finished.append(answer)
            else:
                cut.append(answer)
        return finished, cut


class PromptSearch(EngineSearch):
    """Continues prompts as `Decoder.generate` does, by CTranslate2's `Generator`."""

    kind = "Generator"
    watch: Watch | None = None
    """Ends greedy answers, by the numbers of their rows."""

    def generate(
        self,
        weights: Any,
        requests: Sequence[Request | Sequence[int]],
        progress: ProgressCallback = no_progress,
        watch: Watch | None = None,
    ) -> list[list[Hypothesis]]:
        """Returns the texts that continue each prompt, best first; `weights` are those of the export.

        watch: ends greedy answers.

        Raises: as `EngineSearch.generate`.
        """
        watching = copy.copy(self)
        watching.watch = watch if self.beams == 1 else None
        return super(PromptSearch, watching).generate(weights, requests, progress)

    def stream(self, weights: Any, request: Request | Sequence[int]) -> Iterator[list[int]]:
        """Yields the tokens of the answer that `generate` gives to this one request. Raises: as `generate`, and with beams."""
        if self.beams > 1:
            raise ValueError(f"decode.beam_size is {self.beams}: only decode.beam_size 1 can be streamed; set it to 1")
        row = self.row(0, Request.of(request))
        if row.room < 1:
            return
        callback = ending([lambda tokens: None])
        dropped = when_dropped(callback)
        found = self.translator.generate_tokens(
            row.source,
            max_length=row.room,
            min_length=min(self.config.min_new_tokens, row.room),
            suppress_sequences=self.options["suppress_sequences"],
            end_token=self.ends,
            callback=callback,
        )
        del callback
        try:
            for step in found:
                if step.token not in self.ends:
                    yield [step.token_id]
        finally:
            found.close()
            dropped.wait(MOST_SECONDS)

    def check(self, requests: Sequence[Request]) -> None:
        """Raises: ValueError for a prompt that `generate` refuses."""
        for number, request in enumerate(requests):
            self.row(number, request)

    def row(self, number: int, request: Request) -> SearchedRow:
        """Returns a request as a row. Raises: ValueError, see `generate`; CannotAnswer for what CTranslate2 does not obey."""
        config = request.settings or self.config
        prompt = list(request.source)
        if request.settings is not None:
            check_obeyed(config, self.kind)
        positions_left = (self.sizes.max_positions or LARGEST) - len(prompt) + 1
        limits = (config.max_length(len(prompt)), request.limit, positions_left)
        limit = min(limit for limit in limits if limit is not None)
        with known(subject=f"prompt {request.number(number)}"):
            if request.forced != Forced():
                raise CannotAnswer("has a beginning of its answer: leave it out for CTranslate2")
            check_token_ids(prompt, self.sizes.target_ids, "has")
            check_length(len(prompt), self.sizes.max_positions)
            if not prompt:
                raise ValueError("has no tokens: a prompt has at least 1 token, for example decode.bos_id")
            longest = len(prompt) + limit - 1
            if longest > self.sizes.positions:
                raise CannotAnswer(
                    f"may have {longest} tokens with its answer, and the export has {self.sizes.positions} "
                    "positions: lower decode.max_new_tokens"
                )
        room = limit - (config.forced_eos_id is not None)
        return SearchedRow(number, list(map(str, prompt)), [], room)

    def results(self, rows: Sequence[SearchedRow], room: int, most: int) -> Iterator[tuple[SearchedRow, SearchResult]]:
        """Yields each row with CTranslate2's best answers; `room` and `most` as `EngineSearch.results`.

        CTranslate2 reads together as many tokens of each prompt as the shortest one has. Beams may end only behind prompts of one
        length, and a prompt of one token counts in the room of others. A prompt whose answer would pass the positions of the export
        has its own room.
        """

        def apart(row: SearchedRow) -> tuple[int, int]:
            length = len(row.source)
            length_class = length if self.beams > 1 else length == 1
            fits = length + room - 1 <= self.sizes.positions
            return length_class, room if fits else row.room

        for (_, most_tokens), numbers in groups_of(map(apart, rows)).items():
            callback = None
            if self.watch is not None:
                callback = ending([self.watch(rows[i].number) for i in numbers])
            dropped = when_dropped(callback)
            found = self.translator.generate_batch(
                [rows[i].source for i in numbers],
                include_prompt_in_result=False,
                max_length=most_tokens,
                min_length=min(self.config.min_new_tokens, most_tokens),
                **self.finishing(most),
                **self.options,
                callback=callback,
            )
            del callback
            for i, answer in zip(numbers, found, strict=True):
                result = answer.result()
                yield rows[i], self.result(result.sequences, result.scores)
            dropped.wait(MOST_SECONDS)


def ending(ends: Sequence[Callable[[list[int]], int | None]]) -> Callable[[Any], bool]:
    """Returns the callback of CTranslate2 that gets each token of each answer, and says whether it ends the answer."""
    return lambda step: ends[step.batch_id]([step.token_id]) is not None


def when_dropped(callback: Callable[[Any], bool] | None) -> threading.Event:
    """Returns what is set once nothing has the callback: a thread of CTranslate2 that drops it while Python ends would abort."""
    dropped = threading.Event()
    if callback is None:
        dropped.set()
    else:
        weakref.finalize(callback, dropped.set)
    return dropped


def by_score(found: Sequence[SearchedAnswer]) -> list[SearchedAnswer]:
    """Returns answers by their scores, best first."""
    return sorted(found, key=lambda answer: answer.score, reverse=True)


def as_hypotheses(found: Sequence[SearchedAnswer]) -> list[Hypothesis]:
    hypotheses = [Hypothesis(list(map(int, answer.ids)), answer.score) for answer in found]
    return hypotheses or [NO_ANSWER]


def unpadded(source: Sequence[int], pad_id: int) -> list[int]:
    """Returns a source without the padding behind it. Raises: CannotAnswer for padding within, which JAX would leave out."""
    tokens = list(source)
    while tokens and tokens[-1] == pad_id:
        tokens.pop()
    if pad_id in tokens:
        raise CannotAnswer(f"has decode.pad_id {pad_id} within: leave it out")
    return tokens
