"""Predictions for whole texts of a trained run: vectors, classes, masked tokens. `core/search/encoder.py` has the compiled part."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.base.console import warn
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.bounds import with_places
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.inputs import check_one_stack
from flaxformer_lite.core.search.encoder import predict_class_logits, predict_embeddings, predict_top_tokens, rate
from flaxformer_lite.core.search.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.text import EncodedText, Tokenizer, Tokenizers
from flaxformer_lite.core.text.special_ids import cut_warning, truncated
from flaxformer_lite.engine.texts import ReadsTexts, WarnCallback, check_list
from flaxformer_lite.tasks.classify.answers import (
    Classify,
    ClassPrediction,
    check_classes,
    class_logits,
    pair_refusal,
)
from flaxformer_lite.tasks.label.answers import Label, LabelledWords
from flaxformer_lite.tasks.model import Reporting, TextModel, scaled
from flaxformer_lite.workdir import RunFolder

MASK = "[MASK]"
"""The sign for a masked token in a text, whatever the tokenizer calls it."""


RATED_AT_ONCE = 256
"""Translations whose vectors are read together: a shape that is compiled once."""


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
    def text_model(self) -> TextModel:
        """The part of the run that reads texts in one pass."""
        return TextModel(self.path, self.config, self.params, self.tokenizers, self.placement)

    @property
    def model(self) -> Transformer:
        """The model with kernels that run on this machine."""
        return self.text_model.model

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
        check_width(width, self.text_model.vector_width)
        before, predictor = (
            self.config.objective.text_before(prompt),
            self.text_model.batch_predictor(predict_embeddings),
        )
        vectors = self.text_model.predict(predictor, [before + text for text in texts], **report)
        return cut_vectors(
            np.stack(vectors) if vectors else np.zeros((0, self.text_model.vector_width), np.float32), width
        )

    def classify(self, texts: Sequence[str | tuple[str, str]], **report: Unpack[Reporting]) -> list[ClassPrediction]:
        """Returns the class of each text or pair of texts with its probability, or all its labels; for a regression, the number.

        Classes are named as in `objective.classes`, else "0", "1" and so on. Truncates long texts as `embed` does.

        Example: `run.classify([("It rains.", "The sun shines.")])[0].label`.

        Raises: ValueError if the model has no classes or ranks, or was trained on single texts and is given a pair.
        """
        return list(Classify().answers(self.text_model, texts, **report))

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
            return self.cross_encoded(pairs, **report)
        if self.config.model.sentence_embedding is None:
            raise ValueError(
                f"the run {self.path} gives pairs of texts no score (model.pooler.num_classes is not 1) and makes no vectors "
                "(model.sentence_embedding is None), so it cannot rank: use a reranker, or a run that embeds"
            )
        return self.similarity(pairs, **report)

    def cross_encoded(self, pairs: Sequence[tuple[str, str]], **report: Unpack[Reporting]) -> Float[np.ndarray, "N"]:
        check_classes(self.text_model)
        for number, pair in enumerate(pairs, report.get("first_line", 1)):
            if reason := pair_refusal(self.text_model, pair):
                raise ValueError(f"line {number} {reason}")
        logits = class_logits(self.text_model, pairs, **report)
        return np.array([row[0] for row in logits], np.float32)

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
        predictor = self.text_model.batch_predictor(predict_class_logits, self.config.decode.bos_id)
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
        """Returns the labels of the words of each text, a string or a list of words, and the entities that they spell: see `Label`.

        Example: `run.label(["Marie Curie was born in Warsaw."])[0].spans`.

        Raises: ValueError if the run was not trained to label words.
        """
        return list(Label().answers(self.text_model, texts, **report))

    def text_ids(self, text: str) -> list[int]:
        """Returns the token ids of a text without special ones, [MASK] as a masked token. Raises: ValueError if there is none."""
        return encode_masked(self.tokenizer, text, self.mask_id()) if MASK in text else self.tokenizer.encode(text)

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
            row = self.text_model.encode([tokens], number, warn)
            rows.append(row)
            positions.append([position for position, token in enumerate(row.tokens) if token == mask_id])
            if mask_id not in tokens:
                warn(f"line {number} has no mask: write {MASK} in place of the token to predict")
            elif lost := tokens.count(mask_id) - len(positions[-1]):
                warn(f"line {number}: {lost} of its masks were cut off")
        masked = [i for i, row_positions in enumerate(positions) if row_positions]
        predictions = self.text_model.batch_predictor(predict_top_tokens, top).predict(
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
