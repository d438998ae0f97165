"""Whole texts for a trained model: their vectors, their classes, what is behind a mask. What it compiles is in `encoding.py`."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, PyTree

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.console import warn
from flaxformer_lite.inference.encoder import BatchPredictor, class_logits, embeddings, likely_tokens
from flaxformer_lite.model.inputs import check_one_stack, has_two_stacks
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.text.special_ids import EncodedText
from flaxformer_lite.text.tokenizer import Tokenizer
from flaxformer_lite.text.unknown import UnknownText

MASK = "[MASK]"
"""How a text says which token is to be told, whatever the tokenizer calls it."""


def masked_tokens(tokenizer: Tokenizer, text: str, mask_id: int) -> list[int]:
    """The tokens of a text with MASK in it."""
    if tokenizer.mask_id is not None:
        return tokenizer.encode(text.replace(MASK, tokenizer.pieces([mask_id])[0]))
    first, *others = map(tokenizer.encode, text.split(MASK))
    return first + [token for part in others for token in (mask_id, *part)]


class TokenPrediction(NamedTuple):
    """A token that may stand behind a mask: its text, its probability, and its id."""

    token: str
    probability: float
    id: int


class ClassPrediction(NamedTuple):
    """What a text is said to be."""

    label: str
    """The name of the most probable class; empty where the model says a number."""
    score: float
    """The probability of that class, or the number."""
    scores: dict[str, float]
    """The probability of every class; empty where the model says a number."""


def classified(logits: Float[np.ndarray, "C"], names: Sequence[str]) -> ClassPrediction:
    """The answer that scores of the classes are; one score is a number."""
    if len(logits) == 1:
        return ClassPrediction("", float(logits[0]), {})
    powers = np.exp(logits - logits.max())
    scores = dict(zip(names, (powers / powers.sum()).tolist(), strict=True))
    best = names[int(logits.argmax())]
    return ClassPrediction(best, scores[best], scores)


class TextPredictor:
    """Answers questions about texts with a model, batched and compiled. `name` is the run's, for messages."""

    def __init__(self, config: Config, params: PyTree, tokenizer: Tokenizer, name: str) -> None:
        self.config, self.params, self.tokenizer, self.name = config, params, tokenizer, name
        self.model = Transformer(config.model.for_use)
        self.unknown = UnknownText(tokenizer)
        # One for each question, because each compiles its own steps.
        self.encoder = functools.cache(self._encoder)

    def _encoder(self, ask: Callable[..., Any], *first: Any) -> BatchPredictor:
        return BatchPredictor(
            self.model, functools.partial(ask, *first), self.config.decode.batch_tokens, self.tokenizer.pad_id
        )

    def embed(self, texts: Sequence[str], **told: Any) -> Float[np.ndarray, "N D"]:
        """The vector of each text. Raises: ValueError where the model makes none."""
        if self.config.model.sentence_embedding is None:
            raise ValueError(
                f"model.sentence_embedding is None, so the run {self.name} makes no embeddings: use a run that has it set"
            )
        check_one_stack(self.config.model, f"the run {self.name}")
        found = self.asked(self.encoder(embeddings), texts, **told)
        return np.stack(found) if found else np.zeros((0, self.config.model.d_model), np.float32)

    def classify(self, texts: Sequence[str | tuple[str, str]], **told: Any) -> list[ClassPrediction]:
        """The class or the number of each text or pair. Raises: ValueError where the model has no classes."""
        pooler, objective = self.config.model.pooler, self.config.objective
        if pooler is None or pooler.num_classes == 0:
            raise ValueError(
                f"model.pooler has no classes (model.pooler.num_classes), so the run {self.name} classifies nothing: use a "
                "run that was trained to"
            )
        names = objective.class_names or tuple(map(str, range(pooler.num_classes)))
        check_alone(self.config, texts, told.get("first_line", 1))
        encoder = self.encoder(class_logits, self.config.decode.bos_id)
        return [classified(logits, names) for logits in self.asked(encoder, texts, **told)]

    def asked(
        self,
        encoder: BatchPredictor,
        texts: Sequence[str | tuple[str, str]],
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
        warn: Callable[[str], None] = warn,
        first_line: int = 1,
    ) -> list[Any]:
        """What the encoder says of each text or pair of texts."""
        check_list(texts)
        groups = [(text,) if isinstance(text, str) else text for text in texts]
        single = [text for group in groups for text in group]
        self.unknown.report(single, warn)
        encoded = iter(self.tokenizer.encode_batch(single))
        rows = [
            self.row([next(encoded) for _ in group], number, warn) for number, group in enumerate(groups, first_line)
        ]
        ends = [[self.end(row)] for row in rows] if has_two_stacks(self.config.model) else None
        return encoder.answers({"params": self.params}, rows, ends, progress)

    def row(self, texts: Sequence[Sequence[int]], number: int, warn: Callable[[str], None]) -> EncodedText:
        """One text or two as the model reads them; that they are cut `warn` is told with the number of the line."""
        if (whole := len(self.tokenizer.with_special_tokens(*texts).tokens)) > self.room:
            warn(f"line {number}: the text has {whole} tokens and was cut to {self.room} (data.max_source_length)")
        return self.tokenizer.truncated(texts, self.room)

    def end(self, row: EncodedText) -> int:
        """The place of the last `decode.eos_id`. Raises: ValueError where the tokenizer writes none."""
        end = self.config.decode.eos_id
        if end not in row.tokens:
            raise ValueError(
                f"the tokenizer of {self.name} ends no text with decode.eos_id {end}, where this model's classes are read: use "
                "Run.forward from Python, with attention_mask"
            )
        return len(row.tokens) - 1 - row.tokens[::-1].index(end)

    @property
    def room(self) -> int:
        """Tokens of a text that are read, special ones included."""
        return self.config.data.max_source_length

    def fill_mask(
        self,
        texts: Sequence[str],
        top: int = 5,
        *,
        progress: Callable[[int, int], None] = lambda done, total: None,
        warn: Callable[[str], None] = warn,
        first_line: int = 1,
    ) -> list[list[list[TokenPrediction]]]:
        """For each text and each mask in it the best guesses; none for masks that are cut off, which `warn` is told."""
        check_list(texts)
        mask_id = self.mask_id()
        self.unknown.report([part for text in texts for part in text.split(MASK)], warn)
        rows, asked = [], []
        for number, text in enumerate(texts, first_line):
            tokens = masked_tokens(self.tokenizer, text, mask_id)
            row = self.row([tokens], number, warn)
            rows.append(row)
            asked.append([place for place, token in enumerate(row.tokens) if token == mask_id])
            if mask_id not in tokens:
                warn(f"line {number} has no mask: write {MASK} where a token is to be told")
            elif lost := tokens.count(mask_id) - len(asked[-1]):
                warn(f"line {number}: of its masks {lost} were cut off")
        filled = [i for i, places in enumerate(asked) if places]
        answers = self.encoder(likely_tokens, top).answers(
            {"params": self.params}, [rows[i] for i in filled], [asked[i] for i in filled], progress
        )
        found: list[list[list[TokenPrediction]]] = [[] for _ in rows]
        for i, told in zip(filled, answers, strict=True):
            found[i] = [self.guesses(*guesses) for guesses in list(zip(*told, strict=True))[: len(asked[i])]]
        return found

    def guesses(self, probabilities: Float[np.ndarray, "K"], tokens: Int[np.ndarray, "K"]) -> list[TokenPrediction]:
        """The guesses for one mask. Ids that the model has and the tokenizer does not have no text."""
        size = self.tokenizer.vocab_size
        return [
            TokenPrediction(self.tokenizer.pieces([i])[0] if i < size else "", p, i)
            for p, i in zip(probabilities.tolist(), tokens.tolist(), strict=True)
        ]

    def mask_id(self) -> int:
        """The id that covers a token. Raises: ValueError where the run is no masked language model."""
        model, objective = self.config.model, self.config.objective
        if model.num_decoder_layers or model.head is None:
            setting = "head is None" if model.head is None else f"num_decoder_layers is {model.num_decoder_layers}"
            raise ValueError(
                f"model.{setting}, so the run {self.name} fills no masks: use a masked language model, an encoder alone with a head"
            )
        mask_id = self.tokenizer.mask_id if objective.mask_id is None else objective.mask_id
        if mask_id is None:
            raise ValueError(
                f"the tokenizer of {self.name} has no id for the mask, and there is no objective.mask_token: use a masked "
                "language model"
            )
        return mask_id


def check_alone(config: Config, texts: Sequence[str | tuple[str, str]], first_line: int) -> None:
    """Raises: ValueError for a pair where the model has learned from single texts."""
    firsts = [getattr(config.data.train, name, "") for name in ("source_column", "source_field")]
    if None not in firsts:
        return
    for number, text in enumerate(texts, first_line):
        if not isinstance(text, str):
            raise ValueError(
                f"line {number} has two texts, and this run has learned from single ones: leave out the tab"
            )


def check_list(texts: object) -> None:
    """Raises: ValueError where one text is given in the place of a list of them."""
    if isinstance(texts, str):
        raise ValueError(f"texts is one string, {texts[:40]!r}: give a list of them")
