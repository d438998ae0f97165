"""Minimum-risk training: the expected loss of answers that the model draws itself, where the loss of an answer is 1 - BLEU."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Ge
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.base.bounds import PositiveFloat
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.objectives import Apply, Batch, LossTerm, Seq2Seq
from flaxformer_lite.core.objectives.losses import LogitStats, logit_stats
from flaxformer_lite.core.search import Sampling
from flaxformer_lite.core.search.greedy import GREEDY_SEARCH
from flaxformer_lite.core.search.sampling import RowSampling
from flaxformer_lite.core.search.search import SearchInputs, SearchSettings, finish

ORDER = 4
"""The longest n-grams of BLEU."""


@dataclass(frozen=True, kw_only=True)
class MinimumRisk(Seq2Seq):
    """Translation by minimum-risk training: the model draws answers to each source, and learns to prefer those of better BLEU.

    It continues a trained model (`train.init_from`) at a low rate.

    Reference: Shen et al. 2016, arXiv:1512.02433; for probabilities by mean, Edunov et al. 2018, arXiv:1711.04956, section 4.
    """

    kind: Literal["minimum_risk"] = "minimum_risk"  # type: ignore[assignment]
    weight: PositiveFloat = 1.0
    """Weight of the risk, a number between 0 and 1, beside the cross-entropy in nats."""
    num_samples: Annotated[int, Ge(2)] = 8
    """Number of answers that are drawn for each source, anew in each step. The time of a step grows with it."""
    temperature: PositiveFloat = 1.0
    """Divides the logits that answers are drawn by: below 1 they are closer to the most probable one."""

    def terms(self, apply: Apply, batch: Batch, key: Array) -> dict[str, LossTerm]:
        """Returns the terms of `loss` for the batch with answers that the model draws."""
        answers = draw_answers(apply, batch, self.num_samples, self.temperature, key)
        return super().terms(apply, with_answers(batch, answers), key)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the smoothed cross-entropy of the references, and the risk of the answers that follow each of them."""
        arrays = (logit_stats(outputs.loss_logits, batch.targets), batch.targets, batch.weights)
        stats, targets, weights = jax.tree.map(lambda x: x.reshape(-1, self.num_samples + 1, x.shape[-1]), arrays)
        references, answers = (jax.tree.map(lambda x, which=which: x[:, which], stats) for which in (0, slice(1, None)))
        mask = weights[:, 1:] > 0
        lengths = (weights > 0).sum(-1)
        bleu = sentence_bleu(targets[:, 1:], lengths[:, 1:], targets[:, :1], lengths[:, :1])
        risk = expected_risk(answers, mask, 1 - bleu, exists=(weights[:, 0] > 0).any(-1))
        return {
            **self.head_loss(references, targets[:, 0], weights[:, 0]),
            "risk": risk._replace(weight=self.weight),
        }


class DrawnAnswers(NamedTuple):
    """N answers for each source, drawn by the model, as teacher forcing reads them."""

    inputs: Int[Array, "B N T"]
    """The start, and the answer."""
    targets: Int[Array, "B N T"]
    """The answer and its end; no end where T positions are too few for it."""
    mask: Bool[Array, "B N T"]
    """True at the positions of `targets` that are no padding."""


def draw_answers(apply: Apply, batch: Batch, number: int, temperature: float, key: Array) -> DrawnAnswers:
    """Returns answers to the sources of a batch, drawn without dropout. No gradient flows through them.

    They obey the rules of `apply.decode`, except its search and its lengths: answers have room for a quarter more tokens than the
    references of the batch, and two. Longer ones are cut.
    """
    model, inputs = apply.model, batch.inputs
    assert inputs.source_tokens is not None and inputs.source_mask is not None
    config = replace(apply.decode, beam_size=1, num_hypotheses=1, sampling=Sampling())
    rows, longest = batch.targets.shape
    room = longest + longest // 4 + 2
    most = model.config.positions.max_positions
    if most is not None:
        room = min(room, most)
    assert config.eos_id is not None  # check_special_ids
    exists = batch.weights.sum(-1) > 0
    each = jnp.ones(rows * number)
    keys = jax.random.split(jax.random.fold_in(key, 1), rows * number)
    variables = {"params": jax.lax.stop_gradient(apply.params)}
    sources = SearchInputs(inputs.source_tokens, inputs.source_mask, jnp.where(exists, room, 0))
    settings = SearchSettings(config, room)
    # Sources are encoded once, then repeated for their answers.
    inputs, state = jax.tree.map(
        lambda x: jnp.repeat(x, number, axis=0) if x.ndim else x,
        GREEDY_SEARCH.start((model,), (variables,), sources, settings),
    )
    sampling = RowSampling(keys, temperature=each * temperature, top_p=each, log_min_p=-jnp.inf * each)
    drawn = finish(GREEDY_SEARCH, (model,), (variables,), inputs._replace(sampling=sampling), state, settings)
    drawn = jax.tree.map(lambda x: x.reshape(-1, number, *x.shape[2:]), drawn)
    lengths = drawn.lengths[..., None]
    at = jnp.arange(room)
    starts = jnp.full((rows, number, 1), config.start_id)
    return DrawnAnswers(
        inputs=jnp.concatenate([starts, drawn.tokens[..., :-1]], axis=-1),
        targets=jnp.where(at == lengths, config.eos_id, drawn.tokens),
        mask=(at <= lengths) & exists[:, None, None],
    )


def with_answers(batch: Batch, answers: DrawnAnswers) -> Batch:
    """Returns the batch with each row of the target followed by its answers."""

    def joined(reference: Array, drawn: Array) -> Array:
        reference = jnp.pad(reference, ((0, 0), (0, drawn.shape[-1] - reference.shape[-1])))
        return jnp.concatenate([reference[:, None], drawn.astype(reference.dtype)], 1).reshape(-1, drawn.shape[-1])

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
    equal = answer[..., :, None] == answer[..., None, :]
    shared = answer[..., :, None] == reference[..., None, :]
    own_ngrams, shared_ngrams = equal, shared
    at = jnp.arange(answer.shape[-1])
    logs = jnp.zeros(answer_length.shape)
    for n in range(1, ORDER + 1):
        if n > 1:  # an n-gram is the same if its first token and the (n-1)-gram after it are
            own_ngrams, shared_ngrams = equal & next_of(own_ngrams), shared & next_of(shared_ngrams)
        exists = at <= (answer_length - n)[..., None]
        in_reference = jnp.arange(reference.shape[-1]) <= (reference_length - n)[..., None]
        count = (own_ngrams & exists[..., None, :]).sum(-1)
        reference_count = (shared_ngrams & in_reference[..., None, :]).sum(-1)
        # Each of `count` equal n-grams gets an equal part of the matches that they have together.
        matches = jnp.where(exists, jnp.minimum(1, reference_count / jnp.maximum(count, 1)), 0).sum(-1)
        total = jnp.maximum(answer_length - n + 1, 0)
        added = float(n > 1)
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

    The expectation is over nothing but the N answers: their probabilities are the softmax of each one's mean log-probability of a
    token.
    """
    log_probs = jnp.where(mask, stats.target_logit - stats.log_normalizer, 0).sum(-1) / jnp.maximum(mask.sum(-1), 1)
    risk = (jax.nn.softmax(log_probs, -1) * risks).sum(-1)
    return LossTerm(jnp.where(exists, risk, 0).sum(), exists.sum().astype(risk.dtype))
