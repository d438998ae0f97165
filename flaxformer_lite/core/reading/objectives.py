"""The part of objectives that answers need, without JAX: what is read, prompts, names of classes, windows of long texts.

Each class but the first is a base of the objective of the same kind (`core/objectives/`). It stands for that objective where a
model is used without JAX: `objective_of`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from flaxformer_lite.core.base.bounds import PLACE, Checked, FiniteFloat, Fraction, NonNegativeInt, PositiveInt
from flaxformer_lite.core.base.suggest import suggest
from flaxformer_lite.core.text import EncodedText, Tokenizer


class Rating(NamedTuple):
    """The numbers that a model gives to translations, and the texts in which the model reads the translations."""

    sign: int
    """1, or -1 where the lowest number is the best."""
    bounds: tuple[float, float]
    with_reference: str
    """The text of a translation beside its reference; "": a pair of source and translation."""
    without_reference: str


@dataclass(frozen=True, kw_only=True)
class AnsweredTexts(Checked, at="objective"):
    """The part of every objective that answers need; the defaults are those of one without classes and prompts."""

    kind: str

    reads: ClassVar[str] = "texts"
    """The content of a record: "texts", which are pairs or documents; texts with "classes", or numbers; "words" with labels; a
    query with "candidates", or a pair; "conversations", or pairs; "questions" on texts. A source has records of the same name."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of `Outputs.class_logits`; empty if the objective names none."""
        return ()

    @property
    def rating(self) -> "Rating | None":
        """The numbers with which the model rates a translation; None: it does not rate translations."""
        return None

    @property
    def label_threshold(self) -> float | None:
        """The probability above which a class is a label of the text; None: a text has one class, the most probable."""
        return None

    @property
    def side_prompts(self) -> tuple[str | None, str | None]:
        """The names of the prompts of queries and of their candidates, as `text_before` takes them."""
        return None, None

    @property
    def pair_template(self) -> str:
        """The text in which a query and a candidate are read; "": the tokenizer's form of a pair."""
        return ""

    def text_before(self, prompt: str | None) -> str:
        """Returns the text before a text, by the name of a prompt; None: that of `default_prompt`; "": none.

        Raises: ValueError for a prompt that the objective does not have.
        """
        if prompt:
            raise ValueError(f"the prompt is {prompt!r}, but objective.kind '{self.kind}' has no prompts: leave it out")
        return ""


# Queries with candidates, and vectors -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CandidatesOfQueries(AnsweredTexts):
    """Queries with candidates, or pairs of texts."""

    reads = "candidates"


@dataclass(frozen=True, kw_only=True)
class RankedTexts(CandidatesOfQueries):
    """Queries with candidates, each read together with its query."""

    pair_template: str = ""
    """The text in which a query and a candidate are read, with the places {query} and {document}, for models that answer yes
    or no. Its own special tokens are the only ones. A row that is too long loses tokens before the template's end.
    "": the tokenizer's form of a pair."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pair_template and sorted(PLACE.findall(self.pair_template)) != ["document", "query"]:
            raise ValueError(
                f"objective.pair_template is {self.pair_template!r}: it must have the places {{query}} and {{document}}, each "
                "once, and no other place"
            )


QUERIES, DOCUMENTS = ("query",), ("document", "passage", "corpus")
"""The names that prompts of queries and of documents usually have, as `encode_query` and `encode_document` of sentence-transformers
look for them."""


@dataclass(frozen=True, kw_only=True)
class PromptedTexts(CandidatesOfQueries):
    """Texts that may have a prompt before them, of their side or of a name."""

    prompts: tuple[tuple[str, str], ...] = ()
    """Names of prompts, each with the text that stands before a text: (("query", "query: "), ("document", "passage: "))."""
    query_prompt: str | None = None
    """The name of the prompt before queries, in training and in use; "": none; None: `query`, if `prompts` has it."""
    document_prompt: str | None = None
    """The name of the prompt before their candidates; "": none; None: the first of `document`, `passage` and `corpus` that
    `prompts` has. Without a prompt of either side, both have the default one."""
    default_prompt: str | None = None
    """The name of the prompt before texts that are embedded without the choice of one; None: none."""

    def prompt_text(self, name: str | None, setting: str = "the prompt") -> str:
        """Returns the text of a prompt, "" for None and "". Raises: ValueError for an unknown name."""
        texts = dict(self.prompts)
        if name and name not in texts:
            known = ", ".join(map(repr, texts)) or "none: leave it out, or set objective.prompts"
            raise ValueError(f"{setting} is {name!r}: the prompts are {known}{suggest(name, texts)}")
        return texts[name] if name else ""

    def text_before(self, prompt: str | None) -> str:
        return self.prompt_text(self.default_prompt if prompt is None else prompt)

    @property
    def side_prompts(self) -> tuple[str | None, str | None]:
        query, document = self.named(self.query_prompt, QUERIES), self.named(self.document_prompt, DOCUMENTS)
        return (None, None) if query is document is None else (query or "", document or "")

    def named(self, given: str | None, usual: Sequence[str]) -> str | None:
        """Returns the given prompt, else the first of the usual names that `prompts` has."""
        return next((name for name in usual if name in dict(self.prompts)), None) if given is None else given


# Classes and numbers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClassifiedTexts(AnsweredTexts):
    """Texts with one class, or with several."""

    classes: tuple[str, ...]
    """The names of the classes, as in the data, in the order of their logits."""
    labels: Literal["one", "several"] = "one"
    """Labels of a text. one: exactly one, by the softmax of all logits. several: any number, also none, each by the sigmoid of its
    own logit; the loss is then the mean of the binary cross-entropy over classes and texts."""
    threshold: Fraction = 0.5
    """The probability above which a text gets a label, where it may have several."""

    reads = "classes"

    @property
    def several(self) -> bool:
        return self.labels == "several"

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.classes

    @property
    def label_threshold(self) -> float | None:
        return self.threshold if self.several else None


@dataclass(frozen=True, kw_only=True)
class RatedTexts(AnsweredTexts):
    """Texts with a number."""

    best: Literal["highest", "lowest"] = "highest"
    """The number that the best text has: some metrics of translations count errors."""
    bounds: tuple[FiniteFloat, ...] = ()
    """The lowest and the highest number that `Run.rate` returns; (): no limits. The loss has none."""
    with_reference: str = ""
    """The text in which an imported model reads a {translation} beside its {reference}, and perhaps its {source}."""
    without_reference: str = ""
    """The same without a reference."""

    reads = "classes"

    @property
    def rating(self) -> Rating:
        bounds = self.bounds or (-math.inf, math.inf)
        sign = 1 if self.best == "highest" else -1
        return Rating(sign, (bounds[0], bounds[1]), self.with_reference, self.without_reference)


# Labels of words ----------------------------------------------------------------------------------------------------------

Scheme = Literal["bio", "bioes", "plain"]
PIECE_LABELS = "piece_labels"
"""The array of a text with labelled words: the label of each token, as `piece_label` numbers it."""
OUTSIDE = "O"
"""The label of a word that belongs to no entity."""
PREFIXES = {"bio": "BI", "bioes": "BIES"}
"""The first letters of labels: the first word of an entity (B), one inside (I), the last (E), and a single one (S)."""


class LabelParts(NamedTuple):
    """The parts of labels, by their number; the last item, which -1 finds, is a word without a label."""

    outside: Bool[Any, "C"]
    opens: Bool[Any, "C"]
    """Whether an entity begins with the word: B and S."""
    closes: Bool[Any, "C"]
    """Whether an entity ends with the word: E and S."""
    type: Int[Any, "C"]
    """The number of the entity's type."""


def piece_label(label: int, first: bool) -> int:
    """Returns the number of a piece's label: an odd one for the first piece of a word; 0 is for tokens of no word."""
    return 2 * label + (1 if first else 2)


@dataclass(frozen=True, kw_only=True)
class LabelledWordTexts(AnsweredTexts):
    """Texts whose words have labels."""

    labels: tuple[str, ...]
    """The labels, as in the data, in the order of their logits. O is the label of words outside of all entities."""
    scheme: Scheme = "bio"
    """bio: B-TYPE for the first word of an entity, I-TYPE for its others; bioes: also E-TYPE for the last word, and S-TYPE for
    an entity of one word; plain: a label for each word, such as its part of speech, so each word but an O is an entity."""

    reads = "words"

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.labels

    def type_of(self, label: str) -> str:
        """Returns the type of a label's entity; "" for O."""
        if label == OUTSIDE:
            return ""
        return label if self.scheme == "plain" else label[2:]

    @property
    def entity_types(self) -> tuple[str, ...]:
        """The types of entities, in the order of the labels."""
        return tuple(dict.fromkeys(kind for kind in map(self.type_of, self.labels) if kind))

    @property
    def label_parts(self) -> LabelParts:
        """The parts of all labels."""
        labels = (*self.labels, OUTSIDE)
        kinds = (*self.entity_types, "")
        prefixes = ["S" if self.scheme == "plain" else label[0] for label in labels]
        return LabelParts(
            np.array([label == OUTSIDE for label in labels]),
            np.array([prefix in "BS" for prefix in prefixes]),
            np.array([prefix in "ES" for prefix in prefixes]),
            np.array([kinds.index(self.type_of(label)) for label in labels]),
        )


def continues(labels: Int[Any, "*B W"], parts: LabelParts) -> Bool[Any, "*B V"]:
    """Returns whether each word but the first belongs to the entity of the word before it.

    Reference: `conlleval`, as in seqeval 1.2.2, `get_entities`.
    """
    earlier, later = labels[..., :-1], labels[..., 1:]
    before = LabelParts(*(table[earlier] for table in parts))
    here = LabelParts(*(table[later] for table in parts))
    apart = before.outside | here.outside | here.opens | before.closes | (before.type != here.type)
    return ~apart


# Answers in texts ---------------------------------------------------------------------------------------------------------

ANSWER = "answer"
"""The array of a question: the numbers of the answer's first and last token in the text; empty without an answer."""


class Window(NamedTuple):
    """A part of a text behind its question, as the model reads it."""

    read: EncodedText
    """Special ids included."""
    start: int
    """The number of the text's token that comes first."""
    before: int
    """The position of that token."""
    size: int
    """The number of the text's tokens."""


@dataclass(frozen=True, kw_only=True)
class AnswerWindows(AnsweredTexts):
    """Questions on texts, which are read in windows."""

    unanswerable: bool = False
    """Whether a question may have no answer in its text, as in SQuAD 2."""
    threshold: FiniteFloat = 0.0
    """The two logits of position 0 minus those of the best answer, above which a question has no answer."""
    overlap: NonNegativeInt = 128
    """Tokens of the text that neighbouring windows share, at most half of a window."""
    longest_answer: PositiveInt = 30
    """The most tokens of an answer that is given."""

    reads = "questions"

    def room(self, longest: int, tokenizer: Tokenizer) -> int:
        """Returns the tokens of a question and its text that a row has, beside the special ids. The question has at most half."""
        return max(longest - len(tokenizer.with_special_tokens([], []).tokens), 2)

    def starts(self, question: int, text: int, room: int) -> range:
        """Returns the first token of each window of a text, by the numbers of tokens."""
        size = room - min(question, room // 2)
        shared = min(self.overlap, size // 2)
        return range(0, max(text - shared, 1), size - shared)

    def window(
        self, question: Sequence[int], text: Sequence[int], start: int, room: int, tokenizer: Tokenizer
    ) -> Window:
        """Returns the window that begins with this token of the text."""
        question = question[: room // 2]
        shown = text[start : start + room - len(question)]
        before = tokenizer.with_special_tokens(question, [-1]).tokens.index(-1)
        return Window(tokenizer.with_special_tokens(question, shown), start, before, len(shown))


# All kinds ----------------------------------------------------------------------------------------------------------------

KINDS: dict[str, type[AnsweredTexts]] = {
    "sentence_embeddings": PromptedTexts,
    "reranking": RankedTexts,
    "classification": ClassifiedTexts,
    "regression": RatedTexts,
    "token_labels": LabelledWordTexts,
    "answer_spans": AnswerWindows,
}
"""The part of each kind of objective; of all others it is `AnsweredTexts`."""


def reads_texts(kind: str) -> bool:
    """Returns whether an objective of this kind is counted from what a model reads in texts: masks and language models are not."""
    return kind in KINDS


def objective_of(tree: Mapping[str, Any]) -> AnsweredTexts:
    """Returns the part of an objective that answers need, from its settings as config.json has them."""

    def value(given: object) -> Any:
        return tuple(map(value, given)) if isinstance(given, list) else given

    owner = KINDS.get(tree["kind"], AnsweredTexts)
    names = {field.name for field in dataclasses.fields(owner)}
    return owner(**{name: value(tree[name]) for name in names})
