"""The settings of decoding: how answers are searched for or drawn, scored and batched."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from jaxtyping import Array, Float, Int

from flaxformer_lite.bounds import (
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_bounds,
)
from flaxformer_lite.text.special_ids import BOS, EOS, PAD

PromptAttention = Literal["causal", "full"]
"""The tokens of a prompt that each one attends to: causal: itself and those before it; full: all of the prompt."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn, in the order of these settings: each filter sees what the one before it has left."""

    temperature: NonNegativeFloat = 1.0
    """Divides the scores: less than 1 makes likely tokens likelier, 0 takes the best one always."""
    top_k: NonNegativeInt = 0
    """Draw from the k most probable tokens, and from those that equal the last of them; 0: from all."""
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    """Draw from the most probable tokens that together have this probability, the one that reaches it included; 1: from all.

    Reference: Holtzman et al. 2020, arXiv:1904.09751.
    """
    min_p: Annotated[float, Ge(0), Le(1)] = 0.0
    """Draw from tokens that are at least min_p times as probable as the best; 0: from all.

    Reference: Nguyen et al. 2024, arXiv:2407.01082.
    """

    def __post_init__(self) -> None:
        check_bounds(self, "decode.sampling")


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How answers are searched for or drawn, scored and batched."""

    beam_size: PositiveInt = 1
    """Answers kept open at each step; 1 is greedy search."""
    sampling: Sampling | None = None
    """How tokens are drawn at random, which needs a beam_size of 1; None: they are not, the best answer is searched for."""
    length_penalty: Literal["none", "average", "gnmt"] = "average"
    """Score of an answer whose tokens have the log-probabilities `sum` in total: none: sum; average: sum / len^alpha;
    gnmt: sum / ((5 + len) / 6)^alpha. `len` is the answer's tokens and its end; see at_limit."""
    alpha: FiniteFloat = 1.0
    """Exponent of the length penalty: 0 is no penalty, more favours longer answers, less than 0 shorter ones."""
    early_stopping: bool | Literal["never"] = True
    """Stop once beam_size answers are finished. False: go on while an open one, ending now, would beat the worst. never: while
    one would that adds nothing to its sum and, where more tokens raise its score, has as many as it may."""
    at_limit: Literal["cut", "end"] = "cut"
    """What becomes of an answer that has as many tokens as it may have. cut: it lacks its end, which `len` counts all the same,
    and it is looked at only where a sentence is not done (as Hugging Face's library had it in 2020). end: it is an answer like
    those that end there, and `len` its tokens; early_stopping False and never then ask after open answers only (as in 2025)."""
    num_hypotheses: PositiveInt = 1
    """Answers returned for each sentence: best first, at most beam_size; or as many as are drawn."""
    max_length_ratio: NonNegativeFloat = 2.0
    """An answer has at most max_length_ratio * source tokens + max_length_extra tokens; ends of sentence count."""
    max_length_extra: NonNegativeInt = 10
    """Tokens; see max_length_ratio."""
    max_new_tokens: PositiveInt | None = None
    """An answer has at most so many tokens, its end included, whatever the source; None: see max_length_ratio."""
    min_new_tokens: NonNegativeInt = 0
    """An answer does not end before it has so many tokens."""
    forced_bos_id: NonNegativeInt | None = None
    """The first token of every answer; None: the model's choice."""
    forced_eos_id: NonNegativeInt | None = None
    """The last token of an answer that has not ended one token before its maximum length; None: the model's choice."""
    suppress_ids: tuple[NonNegativeInt, ...] = ()
    """Tokens that are never chosen."""
    no_repeat_ngram: NonNegativeInt = 0
    """No so many tokens in a row occur twice in an answer, what it starts from included; 0: anything may."""
    repetition_penalty: PositiveFloat = 1.0
    """Scores of tokens that the answer has, or what it starts from, are divided by this if above 0, else multiplied; 1: left alone.

    Reference: Keskar et al. 2019, arXiv:1909.05858, section 4.1.
    """
    renormalize: bool = False
    """Whether the probabilities that these rules leave to the tokens are made to sum to 1 again, for the sums that beams go by."""
    pad_id: NonNegativeInt = PAD
    """What stands for no token; this and the next two differ from the tokenizer's own only in models from elsewhere."""
    bos_id: NonNegativeInt = BOS
    """What an answer to a source starts from, and a prompt."""
    eos_id: NonNegativeInt | None = EOS
    """What ends an answer; None: nothing does but its length."""
    more_eos_ids: tuple[NonNegativeInt, ...] = ()
    """Further tokens that end an answer."""
    batch_tokens: PositiveInt = 2048
    """Source tokens decoded at once, padding included: the more there are in a sentence, the fewer sentences."""

    def __post_init__(self) -> None:
        check_bounds(self, "decode")
        if self.eos_id is None and self.more_eos_ids:
            raise ValueError(
                f"decode.more_eos_ids is {self.more_eos_ids}, but decode.eos_id None says that nothing ends an answer: "
                "make the first of them decode.eos_id"
            )
        self.check_score()
        self.check_number()
        if self.max_length_ratio == self.max_length_extra == 0:
            raise ValueError("decode.max_length_ratio and decode.max_length_extra are both 0: raise one of them")

    def check_score(self) -> None:
        """Raises: ValueError where answers cannot be scored so."""
        if self.length_penalty == "none" and self.alpha != 1:
            raise ValueError(
                f"decode.alpha is {self.alpha}, but decode.length_penalty 'none' has no exponent: "
                "leave decode.alpha at 1.0, or choose average or gnmt"
            )

    def check_number(self) -> None:
        """Raises: ValueError where there would not be so many answers."""
        if self.sampling is not None and self.beam_size > 1:
            raise ValueError(
                f"decode.beam_size is {self.beam_size}, but decode.sampling draws tokens: leave one of them out"
            )
        if self.sampling is None and self.num_hypotheses > self.beam_size:
            raise ValueError(
                f"decode.num_hypotheses is {self.num_hypotheses}: give 1 to decode.beam_size, which is {self.beam_size}"
            )

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All tokens that end an answer."""
        return () if self.eos_id is None else (self.eos_id, *self.more_eos_ids)

    def max_length(self, source_length: int) -> int:
        """Most tokens in the answer to a source of that many, each with its end of sentence; at least 1."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return max(1, int(self.max_length_ratio * source_length) + self.max_length_extra)

    def score(self, log_prob: Float[Array, "*B"], length: Int[Array, "*#B"]) -> Float[Array, "*B"]:
        """What answers are ranked by; `length` is `len` in the formulas at `length_penalty`.

        Reference: Wu et al. 2016, arXiv:1609.08144, equation 14 (gnmt, without the coverage term).
        """
        if self.length_penalty == "none":
            return log_prob
        length = length.astype(log_prob.dtype)
        return log_prob / (length if self.length_penalty == "average" else (5 + length) / 6) ** self.alpha
