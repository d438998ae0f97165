"""Predictions for whole texts of a trained run: vectors, classes, masked tokens. `inference/encoder.py` has the compiled part."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from jaxtyping import Float, Int, PyTree

from flaxformer_lite.base.console import warn
from flaxformer_lite.config import Config
from flaxformer_lite.inference import BatchPredictor
from flaxformer_lite.inference.batches import ProgressCallback, no_progress
from flaxformer_lite.inference.encoder import predict_class_logits, predict_embeddings, predict_top_tokens
from flaxformer_lite.model import Transformer
from flaxformer_lite.model.inputs import check_one_stack
from flaxformer_lite.text import EncodedText, Tokenizer
from flaxformer_lite.text.special_ids import cut, cut_warning
from flaxformer_lite.text.tokenizer import UnknownText

MASK = "[MASK]"
"""The sign for a masked token in a text, whatever the tokenizer calls it."""

WarnCallback = Callable[[str], None]


class Reporting(TypedDict, total=False):
    """Keyword arguments for whoever waits for many texts."""

    progress: ProgressCallback
    """Called after each batch with the number of texts done, and their number in all; by default nothing is called."""
    warn: WarnCallback
    """Receives each warning; by default it becomes a line on stderr."""
    first_line: int
    """The number of the first text in messages; 1 by default."""


def encode_masked(tokenizer: Tokenizer, text: str, mask_id: int) -> list[int]:
    """Returns the token ids of a text that contains MASK."""
    if tokenizer.mask_id is not None:
        return tokenizer.encode(text.replace(MASK, tokenizer.pieces([mask_id])[0]))
    first, *others = map(tokenizer.encode, text.split(MASK))
    return first + [token for part in others for token in (mask_id, *part)]


class TokenPrediction(NamedTuple):
    """One candidate for a masked token."""

    token: str
    """The text of the token; empty if the tokenizer does not have the id."""
    probability: float
    id: int


class ClassPrediction(NamedTuple):
    """The predicted class of a text, or the number that a regression model predicts."""

    label: str
    """The name of the most probable class; empty in a regression."""
    score: float
    """The probability of that class, or the number."""
    scores: dict[str, float]
    """The probability of every class; empty in a regression."""


def class_prediction(logits: Float[np.ndarray, "C"], names: Sequence[str]) -> ClassPrediction:
    """Returns the prediction of a text from its class logits; a single logit is a number."""
    if len(logits) == 1:
        return ClassPrediction("", float(logits[0]), {})
    powers = np.exp(logits - logits.max())
    scores = dict(zip(names, (powers / powers.sum()).tolist(), strict=True))
    best = names[int(logits.argmax())]
    return ClassPrediction(best, scores[best], scores)


class TextPredictor:
    """Predicts for whole texts with a model: vectors, classes, masked tokens.

    `name` is the run's, for messages. `unknown` warns of text that is not in the vocabulary.
    """

    def __init__(self, config: Config, params: PyTree, tokenizer: Tokenizer, unknown: UnknownText, name: str) -> None:
        self.config, self.params, self.tokenizer, self.unknown, self.name = config, params, tokenizer, unknown, name
        self.model = Transformer(config.model.for_use)
        # One for each function and its arguments, because each keeps what it compiled.
        self.batch_predictor = functools.cache(self._batch_predictor)

    def _batch_predictor(self, function: Callable[..., Any], *arguments: Any) -> BatchPredictor:
        function = functools.partial(function, *arguments)
        return BatchPredictor(self.model, function, self.config.decode.batch_tokens, self.tokenizer.pad_id)

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that the model reads, special ids included."""
        return self.config.data.max_source_length

    def embed(self, texts: Sequence[str], **report: Unpack[Reporting]) -> Float[np.ndarray, "N D"]:
        """Returns the vector of each text. Raises: ValueError if the model makes none."""
        if self.config.model.sentence_embedding is None:
            raise ValueError(
                f"model.sentence_embedding is None, so the run {self.name} makes no vectors: use a run that has it set"
            )
        check_one_stack(self.config.model, f"the run {self.name}")
        predictor = self.batch_predictor(predict_embeddings)
        vectors = self.predict(predictor, texts, **report)
        return np.stack(vectors) if vectors else np.zeros((0, self.config.model.d_model), np.float32)

    def classify(self, texts: Sequence[str | tuple[str, str]], **report: Unpack[Reporting]) -> list[ClassPrediction]:
        """Returns the class or the number of each text or pair. Raises: ValueError if the model has no classes."""
        pooler, objective = self.config.model.pooler, self.config.objective
        if pooler is None or pooler.num_classes == 0:
            raise ValueError(
                f"model.pooler has no classes (model.pooler.num_classes), so the run {self.name} cannot classify: use a run "
                "that was trained to classify"
            )
        names = objective.class_names or tuple(map(str, range(pooler.num_classes)))
        self.check_pairs(texts, report.get("first_line", 1))
        predictor = self.batch_predictor(predict_class_logits, self.config.decode.bos_id)
        logits = self.predict(predictor, texts, **report)
        return [class_prediction(row, names) for row in logits]

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
    ) -> list[Any]:
        """Returns the predictor's answer to each text or pair of texts."""
        check_list("texts", texts)
        groups = [(text,) if isinstance(text, str) else text for text in texts]
        flat = [text for group in groups for text in group]
        self.unknown.report(flat, warn)
        encoded = iter(self.tokenizer.encode_batch(flat))
        rows = [
            self.encode([next(encoded) for _ in group], number, warn) for number, group in enumerate(groups, first_line)
        ]
        ends = [[self.end_position(row)] for row in rows] if self.config.model.has_two_stacks else None
        return predictor.predict({"params": self.params}, rows, ends, progress)

    def encode(self, texts: Sequence[Sequence[int]], number: int, warn: WarnCallback) -> EncodedText:
        """Returns one text or two with special ids, truncated with a warning that has the line's number."""
        whole = self.tokenizer.with_special_tokens(*texts).tokens
        cut(whole, self.max_tokens, "text", "max_source_length", cut_warning(warn, number))
        return self.tokenizer.truncated(texts, self.max_tokens)

    def text_ids(self, text: str) -> list[int]:
        """Returns the token ids of a text without special ones, [MASK] as a masked token. Raises: ValueError if there is none."""
        return encode_masked(self.tokenizer, text, self.mask_id()) if MASK in text else self.tokenizer.encode(text)

    def end_position(self, row: EncodedText) -> int:
        """Returns the position of the last end, the first of `decode.eos_ids`. Raises: ValueError if the text has none."""
        end = self.config.decode.eos_id
        if end not in row.tokens:
            raise ValueError(
                f"the tokenizer of {self.name} ends no text with {end}, the first of decode.eos_ids, where this model's classes "
                "are read: use Run.forward from Python, with attention_mask"
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
        """Returns the `top` candidates at each mask of each text; none, with a warning, for masks that were truncated."""
        check_list("texts", texts)
        mask_id = self.mask_id()
        self.unknown.report([part for text in texts for part in text.split(MASK)], warn)
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
            candidates[i] = [self.token_predictions(probabilities[p], ids[p]) for p in range(len(positions[i]))]
        return candidates

    def token_predictions(
        self, probabilities: Float[np.ndarray, "K"], ids: Int[np.ndarray, "K"]
    ) -> list[TokenPrediction]:
        """Returns the candidates for one mask."""
        return [
            TokenPrediction(self.tokenizer.piece(i), p, i)
            for p, i in zip(probabilities.tolist(), ids.tolist(), strict=True)
        ]

    def mask_id(self) -> int:
        """Returns the id of a masked token. Raises: ValueError if the run is no masked language model."""
        model, objective = self.config.model, self.config.objective
        if model.num_decoder_layers or model.head is None:
            setting = "head is None" if model.head is None else f"num_decoder_layers is {model.num_decoder_layers}"
            raise ValueError(
                f"model.{setting}, so the run {self.name} cannot fill masks: use a masked language model, an encoder alone with a "
                "language-model head"
            )
        mask_id = self.tokenizer.mask_id if objective.mask_id is None else objective.mask_id
        if mask_id is None:
            raise ValueError(
                f"the tokenizer of {self.name} has no mask id, and objective.mask_token is not set: use a masked language model"
            )
        return mask_id


def check_list(name: str, texts: object) -> None:
    """Raises: ValueError if `texts` is one string."""
    if isinstance(texts, str):
        raise ValueError(f"{name} is one string, {texts[:40]!r}: pass a list of strings")
