"""Answers that a model draws while it is trained, for objectives that compare them with the references."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from flaxformer_lite.inference import DecodeConfig, Sampling
from flaxformer_lite.inference.greedy import sample_answers
from flaxformer_lite.inference.sampling import RowSampling
from flaxformer_lite.inference.search import SearchInputs, SearchSettings
from flaxformer_lite.model import Transformer
from flaxformer_lite.objectives import Batch
from flaxformer_lite.objectives.risk import Answers, ExpectedRisk


def draw_answers(
    model: Transformer, params: PyTree, batch: Batch, decode: DecodeConfig, settings: ExpectedRisk, key: Array
) -> Answers:
    """Returns answers to the sources of a batch, drawn without dropout. No gradient flows through them.

    They obey the rules of `decode`, but for its search and its lengths: answers have room for a quarter more tokens than the
    references of the batch, and two. Longer ones are cut.
    """
    inputs, number = batch.inputs, settings.num_samples
    assert inputs.source_tokens is not None and inputs.source_mask is not None
    config = replace(decode, beam_size=1, num_hypotheses=1, sampling=Sampling())
    rows, longest = batch.targets.shape
    room = longest + longest // 4 + 2
    if (most := model.config.positions.max_positions) is not None:
        room = min(room, most)
    assert config.eos_id is not None  # check_special_ids
    exists = batch.weights.sum(-1) > 0
    each = jnp.ones(rows * number)
    keys = jax.random.split(jax.random.fold_in(key, 1), rows * number)
    found = sample_answers(
        model,
        {"params": jax.lax.stop_gradient(params)},
        SearchInputs(inputs.source_tokens, inputs.source_mask, jnp.where(exists, room, 0)),
        SearchSettings(config, room),
        RowSampling(keys, temperature=each * settings.temperature, top_p=each, log_min_p=-jnp.inf * each),
    )
    lengths, at = found.lengths[..., None], jnp.arange(room)
    starts = jnp.full((rows, number, 1), config.start_id)
    return Answers(
        inputs=jnp.concatenate([starts, found.tokens[..., :-1]], axis=-1),
        targets=jnp.where(at == lengths, config.eos_id, found.tokens),
        mask=(at <= lengths) & exists[:, None, None],
    )
