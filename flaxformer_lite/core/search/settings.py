"""The settings of decoding (search or sampling, the rules that answers obey, scores, lengths, batches), and those of metrics."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flaxformer_lite.core.base.bounds import (
    LARGEST,
    Checked,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Share,
)
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.base.suggest import suggest
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD, check_token_ids

PromptAttention = Literal["causal", "full"]
"""Attention inside a prompt. causal: each token attends to itself and those before it; full: to the whole prompt."""


@dataclass(frozen=True, kw_only=True)
class Sampling(Checked, at="decode.sampling"):
    """Random choice of tokens. The settings apply in this order; each filter sees what the one before it left."""

    temperature: NonNegativeFloat = 1.0
    """Divides the logits: below 1 makes probable tokens more probable, 0 always takes the best token."""
    top_k: NonNegativeInt = 0
    """Sample from the k most probable tokens, and those as probable as the last of them; 0: from all tokens."""
    top_p: PositiveShare = 1.0
    """Sample from the fewest most probable tokens whose probabilities sum to top_p or more, of equal ones those with the lowest
    ids; 1: from all tokens.

    Reference: Holtzman et al. 2020, arXiv:1904.09751.
    """
    min_p: Share = 0.0
    """Sample from tokens at least min_p times as probable as the best one; 0: from all tokens.

    Reference: Nguyen et al. 2024, arXiv:2407.01082.
    """


@dataclass(frozen=True, kw_only=True)
class DecodeConfig(Checked, at="decode"):
    """Decoding: search or sampling, the rules that answers obey, scores, lengths, batches."""

    beam_size: PositiveInt = 1
    """Number of open answers (beams) at each step; 1: greedy search."""
    sampling: Sampling | None = None
    """Random choice of tokens, with a beam_size of 1; None: search for the best answer."""
    length_penalty: Literal["none", "average", "gnmt"] = "average"
    """Score of an answer from its log-probability and its length len (tokens, end included; see finish_at_limit). none: log_prob;
    average: log_prob / len^alpha; gnmt: log_prob / ((5 + len) / 6)^alpha."""
    alpha: FiniteFloat = 1.0
    """Exponent of the length penalty: 0 is no penalty, larger values favour longer answers, negative ones shorter answers."""
    early_stopping: bool | Literal["never"] = True
    """When a beam search stops, once it has beam_size finished answers. True: at once. False: when no open beam, ending now, would
    beat the worst of them. never: when none would, even at its best possible length."""
    finish_at_limit: bool = False
    """Whether an answer that reaches its maximum length counts as finished, with len without an end, as in Hugging Face's library.
    False: its missing end counts in len, and it is used only if the search is not done."""
    num_hypotheses: PositiveInt = 1
    """Number of answers returned, best first: at most beam_size, fewer if a search finds fewer, or as many as are sampled."""
    max_length_ratio: NonNegativeFloat = 2.0
    """Maximum length of an answer: max_length_ratio * source tokens + max_length_extra tokens, ends included."""
    max_length_extra: NonNegativeInt = 10
    """Tokens of the maximum length that do not depend on the source; see max_length_ratio."""
    max_new_tokens: PositiveInt | None = None
    """Maximum length of an answer in tokens, end included; None: see max_length_ratio."""
    min_new_tokens: NonNegativeInt = 0
    """Minimum number of tokens before an answer may end; the maximum length comes first."""
    forced_bos_id: NonNegativeInt | None = None
    """First token of every answer; None: the model's choice."""
    forced_eos_id: NonNegativeInt | None = None
    """Last token of an answer that reaches its maximum length; None: the model's choice."""
    num_ids: PositiveInt | None = None
    """Only the first `num_ids` ids of the vocabulary are chosen; None: all ids. No language writes the pieces of the others."""
    suppress_ids: tuple[NonNegativeInt, ...] = ()
    """Tokens that are never chosen."""
    no_repeat_ngram: NonNegativeInt = 0
    """No n-gram of this many tokens occurs twice in an answer and its prompt; 0: no limit."""
    repetition_penalty: PositiveFloat = 1.0
    """Logits of tokens in the answer or its prompt are divided by this if above 0, else multiplied; 1: unchanged.

    Reference: Keskar et al. 2019, arXiv:1909.05858, section 4.1.
    """
    renormalize: bool = False
    """Renormalize the probabilities after these rules, so that beams are compared by probabilities that sum to 1."""
    pad_id: NonNegativeInt = PAD
    """Padding token. pad_id, bos_id and eos_ids are the tokenizer's; only imported models need others."""
    bos_id: NonNegativeInt | None = BOS
    """Token that starts every answer to a source, and every empty prompt; None: no such token, so no prompt may be empty."""
    eos_ids: tuple[NonNegativeInt, ...] = (EOS,)
    """Tokens that end an answer; the first one also ends the texts that the model reads. (): only the maximum length ends one."""
    batch_tokens: PositiveInt = 2048
    """Source or prompt tokens in a batch, padding included. Its answers, at their maximum length and of all beams, have 32 times as
    many at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length_ratio == self.max_length_extra == 0:
            raise ValueError("decode.max_length_ratio and decode.max_length_extra are both 0: raise one of them")
        if self.length_penalty == "none" and self.alpha != 1:
            raise Mistake(
                f"decode.alpha is {self.alpha}, but decode.length_penalty 'none' has no exponent: "
                "leave decode.alpha at 1.0, or choose average or gnmt",
                setting="decode.alpha",
            )
        if self.sampling is not None and self.beam_size > 1:
            raise Mistake(
                f"decode.beam_size is {self.beam_size} but decode.sampling is set: set decode.beam_size to 1, or remove "
                "decode.sampling",
                setting="decode.beam_size",
            )
        if self.sampling is None and self.num_hypotheses > self.beam_size:
            raise Mistake(
                f"decode.num_hypotheses is {self.num_hypotheses} but decode.beam_size is {self.beam_size}: "
                "decode.num_hypotheses must be between 1 and decode.beam_size",
                setting="decode.num_hypotheses",
            )

    @property
    def program(self) -> "DecodeConfig":
        """The settings that a compiled search depends on; those that are its inputs, such as the temperature, have neutral values.

        Settings with equal programs share what is compiled. Temperature 0 has the program of greedy search.
        """
        inputs: dict[str, Any] = {"repetition_penalty": 1.0}
        inputs |= {name: 0 for name in ("bos_id", "forced_bos_id") if getattr(self, name) is not None}
        if self.sampling is not None:
            sampling = Sampling(top_k=self.sampling.top_k) if self.sampling.temperature else None
            inputs |= {"sampling": sampling, "num_hypotheses": 1}
        return dataclasses.replace(self, **inputs)

    @property
    def num_samples(self) -> int:
        """Answers to a source that are drawn one by one, each as a row of a batch; 1 without `sampling`."""
        return 1 if self.sampling is None else self.num_hypotheses

    @property
    def start_id(self) -> int:
        """`bos_id`, the token from which an answer starts. Raises: ValueError if it is None."""
        if self.bos_id is None:
            raise ValueError("decode.bos_id is None, but answers of this model start from it: set it to a token id")
        return self.bos_id

    @property
    def eos_id(self) -> int | None:
        """The first of `eos_ids`; None if `eos_ids` is empty."""
        return next(iter(self.eos_ids), None)

    def divisor(self, length: Any) -> Any:
        """Returns the divisor that `length_penalty` gives the log-probability of an answer; lengths may be arrays."""
        if self.length_penalty == "none":
            return 1
        base = length if self.length_penalty == "average" else (5 + length) / 6
        return base**self.alpha

    def changed(self, changes: Mapping[str, Any], other_names: Collection[str] = ()) -> "DecodeConfig":
        """Returns the settings with some changed by name.

        Raises: ValueError for a name that is not a setting; the message suggests one of these and of `other_names`.
        """
        names = {field.name for field in dataclasses.fields(self)}
        wrong = sorted(changes.keys() - names)
        if wrong:
            near = suggest(wrong[0], [*names, *other_names])
            raise ValueError(f"{wrong[0]} is no setting of decoding: see DecodeConfig and Sampling{near}")
        return dataclasses.replace(self, **changes)

    def max_length(self, source_length: int) -> int:
        """Returns the maximum number of tokens, at least 1, in the answer to a source of that many tokens, ends included."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return max(1, int(min(self.max_length_ratio * source_length + self.max_length_extra, LARGEST)))


def check_vocabulary(config: DecodeConfig, vocab_size: int) -> None:
    """Raises: ValueError if the settings name an id outside the vocabulary, or every id ends an answer."""
    if (config.num_ids or 0) > vocab_size:
        raise ValueError(
            f"decode.num_ids is {config.num_ids}: it must be at most {vocab_size}, the model's number of ids"
        )
    for name in ("pad_id", "bos_id", "eos_ids", "forced_bos_id", "forced_eos_id", "suppress_ids"):
        ids = getattr(config, name)
        check_token_ids(ids if isinstance(ids, tuple) else (ids,), vocab_size, f"decode.{name} has")
    if len({*config.eos_ids}) == vocab_size:
        raise ValueError(
            f"decode.eos_ids has all {vocab_size} ids of the vocabulary: leave one out that ends no answer"
        )
