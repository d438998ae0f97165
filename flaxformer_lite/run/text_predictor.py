"""Predictions for whole texts of a trained run: vectors, classes, masked tokens. `core/search/encoder.py` has the compiled part."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.base.console import warn
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.bounds import with_places
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.inputs import check_one_stack
from flaxformer_lite.core.objectives.token_labels import OUTSIDE
from flaxformer_lite.core.search.encoder import (
    BatchPredictor,
    predict_class_logits,
    predict_embeddings,
    predict_top_tokens,
    rate,
    reads_first,
)
from flaxformer_lite.core.search.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.text import EncodedText, Tokenizer, Tokenizers
from flaxformer_lite.core.text.special_ids import cut_warning, truncated
from flaxformer_lite.engine.texts import ReadsTexts, WarnCallback, check_list
from flaxformer_lite.files.records.words import LabelsWords
from flaxformer_lite.run.labelling import LabelledWords, Windows, text_of
from flaxformer_lite.workdir import RunFolder

MASK = "[MASK]"
"""The sign for a masked token in a text, whatever the tokenizer calls it."""


RATED_AT_ONCE = 256
"""Translations whose vectors are read together: a shape that is compiled once."""


class Reporting(TypedDict, total=False):
    """Keyword arguments of the methods that take many texts."""

    progress: ProgressCallback
    """Called after each batch with an activity, the number of texts that are done, and their number."""
    warn: WarnCallback
    """Receives each warning; by default it becomes a line on stderr."""
    first_line: int
    """The number of the first text in messages; 1 by default."""
    lines: Sequence[int]
    """The number of each text in messages, where several are of one line; by default they count on from `first_line`."""


def scaled(progress: ProgressCallback, number: int) -> ProgressCallback:
    """Returns the progress of so many things that are made of any number of texts."""
    return lambda activity, done, total: progress(activity, done * number // max(total, 1), number)


def encode_masked(tokenizer: Tokenizer, text: str, mask_id: int) -> list[int]:
    """Returns the token ids of a text that contains MASK."""
    if tokenizer.mask_id is not None:
        return tokenizer.encode(text.replace(MASK, tokenizer.pieces([mask_id])[0]))
    first, *others = map(tokenizer.encode, text.split(MASK))
    return first + [token for ids in others for token in (mask_id, *ids)]


class TokenPrediction(NamedTuple):
    """One candidate for a masked token."""

    token: str
    """The text of the token; empty if the tokenizer does not have the id."""
    probability: float
    id: int


class RankedText(NamedTuple):
    """A candidate in the order of a query."""

    index: int  # type: ignore[assignment]  # tuples have a method of that name
    """Its place among the given candidates, from 0."""
    score: float


def in_order(scores: Sequence[float] | Float[np.ndarray, "K"], sign: int = 1) -> list[RankedText]:
    """Returns the candidates of a query by their scores, best first; equal ones stay in their order. sign: see `Run.sign`."""
    best_first = np.argsort(-sign * np.asarray(scores), kind="stable").tolist()
    return [RankedText(i, float(scores[i])) for i in best_first]


class ClassPrediction(NamedTuple):
    """The predicted class of a text, or several, or the number that a regression model predicts."""

    label: str
    """The name of the most probable class; empty in a regression."""
    score: float
    """The probability of that class, or the number."""
    scores: dict[str, float]
    """The probability of every class; empty in a regression."""
    labels: list[str]
    """The classes of the text, most probable first: `label` alone, or of several labels those above `objective.threshold`."""


def class_prediction(logits: Float[np.ndarray, "C"], names: Sequence[str]) -> ClassPrediction:
    """Returns the prediction of a text from its class logits; a single logit is a number."""
    if len(logits) == 1:
        return ClassPrediction("", float(logits[0]), {}, [])
    powers = np.exp(logits - logits.max())
    scores = dict(zip(names, (powers / powers.sum()).tolist(), strict=True))
    best = names[int(logits.argmax())]
    return ClassPrediction(best, scores[best], scores, [best])


def several_labels(logits: Float[np.ndarray, "C"], names: Sequence[str], threshold: float) -> ClassPrediction:
    """Returns the prediction of a text that may have several labels, or none."""
    probabilities = np.exp(-np.logaddexp(0.0, -logits.astype(np.float64)))
    scores = dict(zip(names, probabilities.tolist(), strict=True))
    best_first = sorted(scores, key=lambda name: -scores[name])
    labels = [name for name in best_first if scores[name] > threshold]
    return ClassPrediction(best_first[0], scores[best_first[0]], scores, labels)


def unit_length(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    """Returns the vectors scaled to length 1; one of length 0 stays."""
    lengths: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)


def check_width(width: int | None, most: int) -> None:
    """Raises: ValueError for a width that vectors of `most` values cannot be cut to."""
    if width is not None and not 1 <= width <= most:
        raise ValueError(f"the width is {width}, but vectors have {most} values: choose 1 to {most}")


def cut_vectors(vectors: Float[np.ndarray, "N D"], width: int | None) -> Float[np.ndarray, "N W"]:
    """Returns the first `width` values of each vector, scaled to length 1; None: the vectors themselves."""
    cut = vectors[:, :width]
    return cut if width is None else unit_length(cut)


@dataclass(frozen=True, repr=False)
class TextPredictor(ReadsTexts):
    """A model with its parameters, tokenizers and config, which predicts for whole texts: vectors, classes, masked tokens."""

    folder: RunFolder
    config: Config
    params: PyTree
    tokenizers: Tokenizers | None
    """None if the weights were imported without a tokenizer."""
    step: int
    """The step of the checkpoint that holds the parameters; of an average, the newest one's."""
    placement: Placement = ONE_DEVICE
    """The devices that hold the parameters, their vocabulary padded where `tensor` devices do not divide it."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def model(self) -> Transformer:
        """The model with kernels that run on this machine."""
        return Transformer(self.config.model.for_use, self.placement.tensor)

    @cached_property
    def batch_predictors(self) -> dict[tuple[Any, ...], BatchPredictor]:
        """One for each function and its arguments, because each keeps what it compiled."""
        return {}

    def batch_predictor(self, function: Callable[..., Any], *arguments: Any) -> BatchPredictor:
        """Returns the compiled form of a function of `core/search/encoder.py`."""
        if (key := (function, *arguments)) not in self.batch_predictors:
            bound = functools.partial(function, *arguments)
            self.batch_predictors[key] = BatchPredictor(
                self.model, bound, self.config.decode.batch_tokens, self.tokenizer.pad_id, self.placement
            )
        return self.batch_predictors[key]

    @property
    def vector_width(self) -> int:
        """The number of values of a vector of `embed`."""
        model = self.config.model
        return model.d_model if model.sentence_embedding is None else model.sentence_embedding.width(model.d_model)

    def embed(
        self, texts: Sequence[str], *, prompt: str | None = None, width: int | None = None, **report: Unpack[Reporting]
    ) -> Float[np.ndarray, "N D"]:
        """Returns the vector of each text, by `model.sentence_embedding`.

        prompt: the name of the one of `objective.prompts` that stands before each text; "": none; None: the run's own. That is
        the one of its side (`objective.query_prompt`, `document_prompt`) for a text of a pair, of a ranking or of a search, and
        else `objective.default_prompt`.
        width: the number of values of a vector, its first ones scaled to length 1 (`objective.widths`); None: the whole vector.

        Truncates texts of more than `data.max_source_length` tokens, with a warning each.

        Example: `run.embed(["a cat", "a dog"]).shape`.

        Raises: ValueError if the model makes no vectors, or narrower ones, or the prompt is unknown.
        """
        if self.config.model.sentence_embedding is None:
            raise ValueError(
                f"model.sentence_embedding is None, so the run {self.folder.path} makes no vectors: use a run that has it set"
            )
        check_one_stack(self.config.model, f"the run {self.folder.path}")
        check_list("texts", texts)
        check_width(width, self.vector_width)
        before, predictor = self.config.objective.text_before(prompt), self.batch_predictor(predict_embeddings)
        vectors = self.predict(predictor, [before + text for text in texts], **report)
        return cut_vectors(np.stack(vectors) if vectors else np.zeros((0, self.vector_width), np.float32), width)

    def classify(self, texts: Sequence[str | tuple[str, str]], **report: Unpack[Reporting]) -> list[ClassPrediction]:
        """Returns the class of each text or pair of texts with its probability, or all its labels; for a regression, the number.

        Classes are named as in `objective.classes`, else "0", "1" and so on. Truncates long texts as `embed` does.

        Example: `run.classify([("It rains.", "The sun shines.")])[0].label`.

        Raises: ValueError if the model has no classes or ranks, or was trained on single texts and is given a pair.
        """
        if self.config.objective.command == "rank":
            raise ValueError(
                f"objective.kind is '{self.config.objective.kind}', so the run {self.folder.path} scores candidates: use `rank` "
                "(Run.rank), or a run that was trained to classify"
            )
        return self._classified(texts, **report)

    def _classified(self, texts: Sequence[str | tuple[str, str]], **report: Unpack[Reporting]) -> list[ClassPrediction]:
        """Returns the classes of texts, or the numbers of a regression or a reranker. Raises: ValueError as `classify`."""
        pooler, objective = self.config.model.pooler, self.config.objective
        if pooler is None or pooler.num_classes == 0:
            raise ValueError(
                f"model.pooler has no classes (model.pooler.num_classes), so the run {self.folder.path} cannot classify: use a run "
                "that was trained to classify"
            )
        if pooler.token == "each":
            raise ValueError(
                f"model.pooler reads each token, so the run {self.folder.path} labels words: use `label` (Run.label)"
            )
        if objective.rating is not None and (objective.rating.with_reference or objective.rating.without_reference):
            raise ValueError(
                f"the run {self.path} rates translations, in a text of its own: use Run.rate, or evaluate --metric {self.path}"
            )
        names = objective.class_names or tuple(map(str, range(pooler.num_classes)))
        self.check_pairs(texts, report.get("first_line", 1))
        predictor = self.batch_predictor(predict_class_logits, self.config.decode.bos_id)
        logits = self.predict(predictor, texts, **report)
        if objective.label_threshold is not None:
            return [several_labels(row, names, objective.label_threshold) for row in logits]
        return [class_prediction(row, names) for row in logits]

    @property
    def scores_pairs(self) -> bool:
        """Whether the model gives a pair of texts one number: a cross-encoder."""
        pooler = self.config.model.pooler
        one_number = pooler is not None and pooler.num_classes == 1 and pooler.token != "each"
        return one_number and self.config.objective.label_threshold is None

    @property
    def sign(self) -> int:
        """1, or -1 where the lowest number is the best (`objective.best`)."""
        rating = self.config.objective.rating
        return 1 if rating is None else rating.sign

    def relevance(self, pairs: Sequence[tuple[str, str]], **report: Unpack[Reporting]) -> Float[np.ndarray, "N"]:
        """Returns how well the second text of each pair answers the first: a cross-encoder's number, else the cosine of vectors.

        A low number is a good one where `objective.best` is "lowest".

        Example: `run.relevance([("capital of France", "Paris is its capital.")])`.

        Raises: ValueError if the model makes neither.
        """
        if self.config.model.estimator is not None:
            raise ValueError(f"the run {self.path} rates translations: use Run.rate, or evaluate --metric {self.path}")
        if self.scores_pairs:
            return np.array([prediction.score for prediction in self._classified(pairs, **report)], np.float32)
        if self.config.model.sentence_embedding is None:
            raise ValueError(
                f"the run {self.path} gives pairs of texts no score (model.pooler.num_classes is not 1) and makes no vectors "
                "(model.sentence_embedding is None), so it cannot rank: use a reranker, or a run that embeds"
            )
        return self.similarity(pairs, **report)

    def similarity(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompt: str | None = None,
        width: int | None = None,
        **report: Unpack[Reporting],
    ) -> Float[np.ndarray, "N"]:
        """Returns the cosine of the vectors of each pair, of a query and a document. The arguments are those of `embed`.

        Example: `run.similarity([("capital of France", "Paris is its capital.")])`.
        """
        check_list("pairs", pairs)
        sides, first = [], report.get("first_line", 1)
        lines = report.get("lines") or range(first, first + len(pairs))
        for texts, side_prompt in zip(zip(*pairs, strict=True), self.config.objective.side_prompts, strict=False):
            unique = {text: number for number, text in enumerate(dict.fromkeys(texts))}
            places = dict(zip(reversed(texts), reversed(lines), strict=True))  # the first of each text
            report["lines"] = [places[text] for text in unique]
            chosen = side_prompt if prompt is None else prompt
            vectors = unit_length(self.embed(list(unique), prompt=chosen, width=width, **report))
            sides.append(vectors[[unique[text] for text in texts]])
        return np.einsum("ND,ND->N", *sides) if sides else np.zeros(0, np.float32)

    @property
    def rates_with(self) -> tuple[bool, ...]:
        """Whether `rate` reads a reference: (True,) needs one, (False,) reads none, (True, False) reads one if it is given.

        Raises: ValueError if the run rates no translations.
        """
        estimator, rating = self.config.model.estimator, self.config.objective.rating
        if estimator is not None:
            return (estimator.reference,)
        if rating is not None and self.scores_pairs:
            texts = {True: rating.with_reference, False: rating.without_reference}
            return tuple(given for given, text in texts.items() if text) or (False,)
        raise ValueError(
            f"the run {self.path} rates no translations: use an imported MetricX or COMET, or a run of the objective "
            "'regression' on sources with their translations"
        )

    def rate(
        self,
        sources: Sequence[str],
        translations: Sequence[str],
        references: Sequence[str] | None = None,
        **report: Unpack[Reporting],
    ) -> Float[np.ndarray, "N"]:
        """Returns the number of each translation; whether the highest or the lowest is the best is `objective.best`.

        Truncates long texts as `embed` does.

        Example: `run.rate(["ein Hund"], ["a dog"], ["a dog"])`.

        Raises: ValueError if the run rates no translations, or reads no reference, or needs one.
        """
        if (references is not None) not in self.rates_with:
            given, remedy = ("None", "give them") if references is None else ("given", "leave them out")
            raise ValueError(f"references are {given}, but the run {self.path} rates translations otherwise: {remedy}")
        sides = (sources, translations, *([] if references is None else [references]))
        for name, texts in zip(("sources", "translations", "references"), sides, strict=False):
            check_list(name, texts)
            if len(texts) != len(sources):
                raise ValueError(f"there are {len(texts)} {name} for {len(sources)} sources: give one for each")
        if not sources:
            return np.zeros(0, np.float32)
        rating = self.config.objective.rating
        assert rating is not None  # by the import, or `rates_with`
        wording = rating.without_reference if references is None else rating.with_reference
        if self.config.model.estimator is not None:
            ratings = self.estimated(sides, **report)
        elif wording:
            names = ("source", "translation", "reference")
            filled = [with_places(wording, dict(zip(names, texts, strict=False))) for texts in zip(*sides, strict=True)]
            ratings = self.class_number(filled, **report)
        else:
            ratings = self.relevance(list(zip(sources, translations, strict=True)), **report)
        return np.clip(ratings, *rating.bounds)

    def estimated(self, sides: Sequence[Sequence[str]], **report: Unpack[Reporting]) -> Float[np.ndarray, "N"]:
        """Returns the numbers of `model.estimator` by the vectors of all texts, each of which is read once."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(itertools.chain(*sides)))}
        first, number_of_ratings = report.get("first_line", 1), len(sides[0])
        lines = report.get("lines") or range(first, first + number_of_ratings)
        places = {text: line for texts in sides for text, line in reversed(list(zip(texts, lines, strict=True)))}
        report["lines"] = [places[text] for text in numbers]
        report["progress"] = scaled(report.get("progress", no_progress), number_of_ratings)
        vectors = self.embed(list(numbers), **report)
        ratings = []
        for start in range(0, number_of_ratings, RATED_AT_ONCE):
            rows = [[numbers[text] for text in texts[start : start + RATED_AT_ONCE]] for texts in sides]
            filled = np.pad(rows, ((0, 0), (0, RATED_AT_ONCE - len(rows[0]))))
            source, translation, *reference = vectors[filled]
            numbers_of_rows = rate(self.model, {"params": self.params}, source, translation, *(reference or [source]))
            ratings.append(np.asarray(numbers_of_rows)[: len(rows[0])])
        return np.concatenate(ratings)

    def class_number(
        self,
        texts: Sequence[str],
        *,
        progress: ProgressCallback = no_progress,
        warn: WarnCallback = warn,
        first_line: int = 1,
        lines: Sequence[int] = (),
    ) -> Float[np.ndarray, "N"]:
        """Returns the single class logit of each text, read without special ids."""
        self.unknown.report(texts, warn)
        most, rows = self.config.data.max_source_length, list[EncodedText]()
        encoded = self.tokenizer.encode_batch(texts)
        for number, ids in zip(lines or range(first_line, first_line + len(texts)), encoded, strict=True):
            kept = truncated(ids, most, "text", "max_source_length", cut_warning(warn, number))
            rows.append(EncodedText(list(kept), [0] * len(kept)))
        predictor = self.batch_predictor(predict_class_logits, self.config.decode.bos_id)
        return np.array(predictor.predict({"params": self.params}, rows, None, progress))[:, 0]

    def rank(self, query: str, candidates: Sequence[str], **report: Unpack[Reporting]) -> list[RankedText]:
        """Returns the candidates, each with its place in the list and its score by `relevance`, best first.

        Example: `run.rank("capital of France", ["It rains.", "Paris is its capital."])[0].index`.
        """
        check_list("candidates", candidates)
        return self.rankings([(query, candidates)], **report)[0]

    def rankings(
        self, asked: Sequence[tuple[str, Sequence[str]]], **report: Unpack[Reporting]
    ) -> list[list[RankedText]]:
        """Returns what `rank` does for each query with its candidates."""
        sizes = [len(candidates) for _, candidates in asked]
        first, progress = report.get("first_line", 1), report.get("progress", no_progress)
        report["lines"] = np.repeat(np.arange(first, first + len(asked)), sizes).tolist()
        report["progress"] = scaled(progress, len(asked))
        scores = self.relevance([(query, text) for query, candidates in asked for text in candidates], **report)
        return [
            in_order(of_query, self.sign)
            for _, of_query in zip(asked, np.split(scores, np.cumsum(sizes[:-1], dtype=int)), strict=False)
        ]

    def label(self, texts: Sequence[str | Sequence[str]], **report: Unpack[Reporting]) -> list[LabelledWords]:
        """Returns the labels of the words of each text, a string or a list of words, and the entities that they spell.

        Both are read in their `units_of`, as in training; units that one token reads together are one. They are the words of a
        string; a word of a list has the label of its first unit. A run without `data.train`, an imported one, reads words of lists
        whole, by their first piece. A text of more than `data.max_source_length` tokens is read in windows that overlap by half;
        each unit has the label from the window in which it has the most context. A word without a token is an O.

        Example: `run.label(["Marie Curie was born in Warsaw."])[0].spans`.

        Raises: ValueError if the run was not trained to label words.
        """
        objective = self.config.objective
        if not isinstance(objective, LabelsWords):
            raise ValueError(
                f"objective.kind is '{objective.kind}', so the run {self.folder.path} labels no words: use a run of the objective "
                "'token_labels'"
            )
        check_list("texts", texts)
        say, most = report.get("warn", warn), self.config.data.max_source_length
        whole = [text_of(text) for text in texts]
        self.unknown.report(whole, say)
        encoded = self.tokenizer.encode_spans(whole)
        around = self.tokenizer.with_special_tokens([-1]).tokens
        room = max(most - len(around) + 1, 1)
        whole_words = self.config.data.train is None
        windows = [Windows.of(text, read.spans, room, whole_words) for text, read in zip(texts, encoded, strict=True)]
        for number, one in enumerate(windows, report.get("first_line", 1)):
            if lost := len(one.words) - len(one.first_units):
                say(f"line {number}: {lost} of its words have no token of this tokenizer, and get the label {OUTSIDE}")
        rows = list[EncodedText]()
        for one, read in zip(windows, encoded, strict=True):
            rows += [self.tokenizer.with_special_tokens(read.ids[start : start + room]) for start in one.starts]
        predictor = self.batch_predictor(predict_class_logits, self.config.decode.bos_id)
        progress = scaled(report.get("progress", no_progress), len(texts))
        logits = iter(predictor.predict({"params": self.params}, rows, None, progress))
        return [
            one.labelled(list(itertools.islice(logits, len(one.starts))), around.index(-1), objective)
            for one in windows
        ]

    def first_pair(self, texts: Sequence[str | tuple[str, str]]) -> int | None:
        """Returns the index of the first pair of texts if the model was trained on single texts; None if all fit."""
        sources = [getattr(self.config.data.train, name, "") for name in ("source_column", "source_field")]
        return next((i for i, text in enumerate(texts) if None in sources and not isinstance(text, str)), None)

    def check_pairs(self, texts: Sequence[str | tuple[str, str]], first_line: int = 1) -> None:
        """Raises: ValueError for a pair of texts if the model was trained on single texts."""
        if (pair := self.first_pair(texts)) is not None:
            raise ValueError(
                f"line {first_line + pair} has two texts, but this run was trained on single texts: remove the tab"
            )

    def predict(
        self,
        predictor: BatchPredictor,
        texts: Sequence[str | tuple[str, str]],
        *,
        progress: ProgressCallback = no_progress,
        warn: WarnCallback = warn,
        first_line: int = 1,
        lines: Sequence[int] = (),
    ) -> list[Any]:
        """Returns the predictor's answer to each text or pair of texts. The further arguments are those of `Reporting`."""
        check_list("texts", texts)
        groups = [(text,) if isinstance(text, str) else text for text in texts]
        flat = [text for group in groups for text in group]
        self.unknown.report(flat, warn)
        encoded = iter(self.tokenizer.encode_batch(flat))
        rows = []
        for number, group in zip(lines or range(first_line, first_line + len(groups)), groups, strict=True):
            ids = [next(encoded) for _ in group]
            rows.append(self.encode(ids, number, warn))
        at_end = self.config.model.has_two_stacks and not reads_first(self.config.model)
        ends = [[self.end_position(row)] for row in rows] if at_end else None
        return predictor.predict({"params": self.params}, rows, ends, progress)

    def encode(self, texts: Sequence[Sequence[int]], number: int, warn: WarnCallback) -> EncodedText:
        """Returns one text or two with special ids, truncated with a warning that has the line's number.

        A pair whose first text has no token is one text, as in training.
        """
        if len(texts) > 1 and not len(texts[0]):
            texts = texts[1:]
        most = self.config.data.max_source_length
        whole = self.tokenizer.with_special_tokens(*texts).tokens
        truncated(whole, most, "text", "max_source_length", cut_warning(warn, number))
        return self.tokenizer.truncated(texts, most)

    def text_ids(self, text: str) -> list[int]:
        """Returns the token ids of a text without special ones, [MASK] as a masked token. Raises: ValueError if there is none."""
        return encode_masked(self.tokenizer, text, self.mask_id()) if MASK in text else self.tokenizer.encode(text)

    def end_position(self, row: EncodedText) -> int:
        """Returns the position of the last end, the first of `decode.eos_ids`. Raises: ValueError if the text has none."""
        end = self.config.decode.eos_id
        if end not in row.tokens:
            raise ValueError(
                f"the tokenizer of {self.folder.path} ends no text with {end}, the first of decode.eos_ids, where this model's "
                "classes are read: use Run.forward from Python, with attention_mask"
            )
        return len(row.tokens) - 1 - row.tokens[::-1].index(end)

    def fill_mask(
        self,
        texts: Sequence[str],
        top: int = 5,
        *,
        progress: ProgressCallback = no_progress,
        warn: WarnCallback = warn,
        first_line: int = 1,
    ) -> list[list[list[TokenPrediction]]]:
        """Returns the `top` most probable tokens at each [MASK] of each text, most probable first.

        Warns of texts without a mask. Truncates long texts as `embed` does.

        Example: `run.fill_mask(["The [MASK] is red."])[0][0][0].token`.

        Raises: ValueError if the model is no masked language model.
        """
        check_list("texts", texts)
        mask_id = self.mask_id()
        self.unknown.report([piece for text in texts for piece in text.split(MASK)], warn)
        rows, positions = [], []
        for number, text in enumerate(texts, first_line):
            tokens = self.text_ids(text)
            row = self.encode([tokens], number, warn)
            rows.append(row)
            positions.append([position for position, token in enumerate(row.tokens) if token == mask_id])
            if mask_id not in tokens:
                warn(f"line {number} has no mask: write {MASK} in place of the token to predict")
            elif lost := tokens.count(mask_id) - len(positions[-1]):
                warn(f"line {number}: {lost} of its masks were cut off")
        masked = [i for i, row_positions in enumerate(positions) if row_positions]
        predictions = self.batch_predictor(predict_top_tokens, top).predict(
            {"params": self.params}, [rows[i] for i in masked], [positions[i] for i in masked], progress
        )
        candidates: list[list[list[TokenPrediction]]] = [[] for _ in rows]
        for i, (probabilities, ids) in zip(masked, predictions, strict=True):
            pairs = zip(probabilities[: len(positions[i])].tolist(), ids[: len(positions[i])].tolist(), strict=True)
            candidates[i] = [
                [TokenPrediction(self.tokenizer.piece(id_), p, id_) for p, id_ in zip(*pair, strict=True)]
                for pair in pairs
            ]
        return candidates

    def mask_id(self) -> int:
        """Returns the id of a masked token. Raises: ValueError if the run is not a masked language model."""
        model, objective = self.config.model, self.config.objective
        if model.num_decoder_layers or model.head is None:
            setting = "head is None" if model.head is None else f"num_decoder_layers is {model.num_decoder_layers}"
            raise ValueError(
                f"model.{setting}, so the run {self.folder.path} cannot fill masks: use a masked language model, an encoder "
                "alone with a language-model head"
            )
        mask_id = self.tokenizer.mask_id if objective.mask_id is None else objective.mask_id
        if mask_id is None:
            raise ValueError(
                f"the tokenizer of {self.folder.path} has no mask id, and objective.mask_token is not set: use a masked language "
                "model"
            )
        return mask_id
