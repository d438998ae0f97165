"""Oracle: 30 steps of AdamW by PyTorch on models of Hugging Face, and on adapters of PEFT (fixtures/training_reference.npz).

In float64, but for what the library always computes in float32. A gradient finds what a forward pass cannot: what is frozen
there, where a shared table is trained, which targets count.
"""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.core.model import Inputs
from flaxformer_lite.core.objectives import BaseObjective, Batch, CausalLM, MaskedLM, Seq2Seq
from flaxformer_lite.core.optim import AdamW, Constant, OptimizerConfig
from flaxformer_lite.core.step import train_step
from flaxformer_lite.run import Run
from flaxformer_lite.training.task import train_task
from tests.support.limits import assert_close
from tests.support.paths import FIXTURES, ROOT
from tests.support.small_models import NO_DROPOUT

REFERENCE = dict(np.load(FIXTURES / "training_reference.npz"))
MODELS = sorted({name.rpartition("/")[0] for name in REFERENCE})
OPTIMIZER = OptimizerConfig(
    algorithm=AdamW(b1=0.9, b2=0.99, eps=1e-8),
    schedule=Constant(peak_rate=1e-3, warmup_steps=0),
    weight_decay=0.1,
    clip_norm=None,
)


def batch_of(run: Run, tokens: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> Batch:
    """The batch of a step. In a decoder alone a label is the token at its own place, which the position before predicts."""
    model, given = run.config.model, {"source_tokens": jnp.asarray(tokens, jnp.int32), "source_mask": mask > 0}
    if model.num_encoder_layers == 0:
        given = {"target_tokens": given["source_tokens"], "target_mask": mask > 0}
        labels = np.pad(labels[:, 1:], ((0, 0), (0, 1)), constant_values=-100)
    if model.num_token_types:
        given |= {"token_types": jnp.zeros(tokens.shape, jnp.int32)}
    targets = jnp.asarray(np.maximum(labels, 0), jnp.int32)
    if model.has_two_stacks:
        before = jnp.where(labels[:, :-1] == -100, run.config.decode.pad_id, targets[:, :-1])
        start = jnp.full((len(labels), 1), run.config.decode.bos_id, jnp.int32)
        given |= {"target_tokens": jnp.concatenate([start, before], 1)}
    return Batch(Inputs(**jax.tree.map(jnp.asarray, given)), targets, jnp.asarray(labels != -100, jnp.float64))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_the_librarys(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)  # adapters name their base from there
    run = flaxformer_lite.load(flaxformer_lite.import_hf(FIXTURES / name, tmp_path / "run"))
    model = run.config.model
    objective: BaseObjective = CausalLM() if model.num_encoder_layers == 0 else Seq2Seq(label_smoothing=0)
    if model.num_decoder_layers == 0:
        objective = MaskedLM(mask_token=model.vocab_size - 1)
    lora = None if model.lora is None else dataclasses.replace(model.lora, dropout=0)
    model = dataclasses.replace(model, dropout=NO_DROPOUT, lora=lora, dtype="float64")
    task = train_task(dataclasses.replace(run.config, model=model, objective=objective, optimizer=OPTIMIZER))
    step = jax.jit(functools.partial(train_step, task))
    state = jax.jit(task.initialize)()._replace(params=run.params)
    state = jax.tree.map(
        lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float64)) if x.dtype.kind == "f" else x, state
    )
    found = []
    for inputs in zip(
        *(REFERENCE[f"{name}/{part}"] for part in ("input_ids", "attention_mask", "labels")), strict=True
    ):
        state, measured = step(state, batch_of(run, *inputs))
        found.append([measured["loss"], measured["gradient_norm"]])
    losses, norms = np.asarray(found, np.float64).T
    np.testing.assert_allclose(norms[0], REFERENCE[f"{name}/gradient_norm"][0], rtol=1e-6)
    assert_close(losses, REFERENCE[f"{name}/loss"], 1e-6)
