"""Minimum-risk training: the expected loss of answers that the model draws itself, where the loss of an answer is 1 - BLEU."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Ge
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.base.bounds import Checked, PositiveFloat
from flaxformer_lite.objectives.batch import Batch
from flaxformer_lite.objectives.losses import LogitStats, LossTerm

ORDER = 4
"""The longest n-grams of BLEU."""


@dataclass(frozen=True, kw_only=True)
class ExpectedRisk(Checked, at="objective.risk"):
    """Settings of minimum-risk training, which continues a trained model (`train.init_from`) at a low rate.

    Reference: Shen et al. 2016, arXiv:1512.02433; for probabilities by mean, Edunov et al. 2018, arXiv:1711.04956, section 4.
    """

    weight: PositiveFloat = 1.0
    """Weight of the risk, a number between 0 and 1, beside the cross-entropy in nats."""
    num_samples: Annotated[int, Ge(2)] = 8
    """Number of answers that are drawn for each source, anew in each step. The time of a step grows with it."""
    temperature: PositiveFloat = 1.0
    """Divides the logits that answers are drawn by: below 1 they are closer to the most probable one."""


class Answers(NamedTuple):
    """N answers for each source, drawn by the model, as teacher forcing reads them."""

    inputs: Int[Array, "B N T"]
    """The start, and the answer."""
    targets: Int[Array, "B N T"]
    """The answer and its end; no end where T positions are too few for it."""
    mask: Bool[Array, "B N T"]
    """True at the positions of `targets` that are no padding."""


def with_answers(batch: Batch, answers: Answers) -> Batch:
    """Returns the batch with each row of the target followed by its answers."""

    def joined(own: Array, drawn: Array) -> Array:
        own = jnp.pad(own, ((0, 0), (0, drawn.shape[-1] - own.shape[-1])))
        return jnp.concatenate([own[:, None], drawn.astype(own.dtype)], 1).reshape(-1, drawn.shape[-1])

    inputs = batch.inputs
    assert inputs.target_tokens is not None and inputs.target_mask is not None
    return batch._replace(
        inputs=inputs._replace(
            target_tokens=joined(inputs.target_tokens, answers.inputs),
            target_mask=joined(inputs.target_mask, answers.mask),
        ),
        targets=joined(batch.targets, answers.targets),
        weights=joined(batch.weights, answers.mask),
    )


def sentence_bleu(
    answer: Int[Array, "*B T"],
    answer_length: Int[Array, "*B"],
    reference: Int[Array, "*#B S"],
    reference_length: Int[Array, "*#B"],
) -> Float[Array, "*B"]:
    """Returns the BLEU of each answer, between 0 and 1, over token ids, ends included; 1 is added to the counts of n-grams
    longer than 1.

    Reference: Lin & Och 2004, "ORANGE", section 4 (smoothing).
    """
    own = answer[..., :, None] == answer[..., None, :]
    shared = answer[..., :, None] == reference[..., None, :]
    own_ngrams, shared_ngrams = own, shared
    at, logs = jnp.arange(answer.shape[-1]), jnp.zeros(answer_length.shape)
    for n in range(1, ORDER + 1):
        if n > 1:  # an n-gram is the same if its first token and the (n-1)-gram after it are
            own_ngrams, shared_ngrams = own & next_of(own_ngrams), shared & next_of(shared_ngrams)
        exists = at <= (answer_length - n)[..., None]
        in_reference = jnp.arange(reference.shape[-1]) <= (reference_length - n)[..., None]
        count = (own_ngrams & exists[..., None, :]).sum(-1)
        reference_count = (shared_ngrams & in_reference[..., None, :]).sum(-1)
        # Each of `count` equal n-grams gets an equal part of the matches that they have together.
        matches = jnp.where(exists, jnp.minimum(1, reference_count / jnp.maximum(count, 1)), 0).sum(-1)
        total, added = jnp.maximum(answer_length - n + 1, 0), float(n > 1)
        logs = logs + jnp.log((matches + added) / jnp.maximum(total + added, 1))
    brevity = jnp.minimum(0, 1 - reference_length / jnp.maximum(answer_length, 1))
    return jnp.where(answer_length > 0, jnp.exp(logs / ORDER + brevity), 0)


def next_of(equal: Bool[Array, "*B T S"]) -> Bool[Array, "*B T S"]:
    """Returns entry [i + 1, j + 1] at [i, j], False beyond the end."""
    return jnp.pad(equal, [(0, 0)] * (equal.ndim - 2) + [(0, 1), (0, 1)])[..., 1:, 1:]


def expected_risk(
    stats: LogitStats, mask: Bool[Array, "B N T"], risks: Float[Array, "B N"], exists: Bool[Array, "B"]
) -> LossTerm:
    """Returns the expected risk of each row's answers, and the number of rows that exist.

    The expectation is over the N answers alone: their probabilities are the softmax of each one's mean log-probability of a token.
    """
    log_probs = jnp.where(mask, stats.target_logit - stats.log_normalizer, 0).sum(-1) / jnp.maximum(mask.sum(-1), 1)
    risk = (jax.nn.softmax(log_probs, -1) * risks).sum(-1)
    return LossTerm(jnp.where(exists, risk, 0).sum(), exists.sum().astype(risk.dtype))
