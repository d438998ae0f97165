"""Teaching: what a run, or several together, predict for the targets of another config's training data."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data.batch_plan import PADDING_ROW
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.objectives import BaseObjective, Batch
from flaxformer_lite.core.search.beam import log_mean_probs
from flaxformer_lite.core.search.decoder import check_translates
from flaxformer_lite.core.search.sampling import top_k
from flaxformer_lite.files.data.mixture import open_parts
from flaxformer_lite.files.data.reading import tokenize
from flaxformer_lite.files.data.refused import Origin
from flaxformer_lite.run.run import Run
from flaxformer_lite.tools.research.predictions import Predictions, SoftTargets, pair_key


def predict_targets(
    teacher: Run, config: Config, top: int = 16, progress: ProgressCallback = no_progress
) -> Predictions:
    """Returns the `top` most probable tokens at each position of the targets of `data.train` of the config, by the teacher.

    The teacher reads each source and the words of its target before a position, without dropout; an ensemble (`load_ensemble`)
    predicts the mean of its members' probabilities. Pairs that training drops, since they are too long, are left out.

    Raises: ValueError if the config has no pairs to translate, or another vocabulary than the teacher.
    """
    source = config.data.source("train")
    if source is None or not config.objective.translates:
        raise ValueError(
            f"objective.kind is '{config.objective.kind}' and data.train is {config.data.train}: a teacher reads pairs to "
            "translate; set data.train, and the objective to Seq2Seq()"
        )
    check_translates(teacher.config.model)  # `load_ensemble` has checked the others
    size, theirs = config.model.vocab_sizes[1], teacher.config.model.vocab_sizes[1]
    if size != theirs:
        raise ValueError(
            f"the config's model predicts {size:,} tokens, but the run {teacher.folder.path} {theirs:,}: a student has its "
            "teacher's tokenizer, data.tokenizer=FromRun(path=…)"
        )
    if not 0 < top <= size:
        raise ValueError(f"top is {top}: it must be between 1 and the {size:,} tokens of the vocabulary")
    tokenizers = teacher.required_tokenizers
    records = tokenize(open_parts(source, "data.train")[0], tokenizers, Origin(source, "data.train"))
    dataset = Dataset.evaluation(records, config.objective, config.data, tokenizers.target, config.decode.bos_id)
    runs = (teacher, *teacher.others)
    predict = jax.jit(functools.partial(top_of_mean, runs, config.objective, top))
    params = [run.params for run in runs]
    targets: dict[int, SoftTargets] = {}
    for step in range(total := dataset.plan.batches_per_epoch):
        soft = jax.device_get(predict(params, dataset.batch(step)))
        for row, i in enumerate(dataset.plan.batch(step).examples.tolist()):
            if i != PADDING_ROW:
                length = dataset.lengths[i, 1]
                targets[pair_key(dataset.rows[i])] = SoftTargets(*(np.array(x[row, :length]) for x in soft))
        progress("predicting the targets of data.train", step + 1, total)
    return Predictions.of(targets, size)


def top_of_mean(
    runs: tuple[Run, ...], objective: BaseObjective, top: int, params: list[PyTree], batch: Batch
) -> SoftTargets:
    """Returns the most probable tokens by the mean probabilities of the runs, for a batch [B, T]."""

    def log_probs(run: Run, params: PyTree) -> Float[Array, "B T V"]:
        outputs: Any = run.model.apply({"params": params}, objective.inputs(batch, run.model.config))
        return jax.nn.log_softmax(outputs.logits.astype(jnp.float32), -1)

    mean = log_mean_probs([log_probs(run, p) for run, p in zip(runs, params, strict=True)])
    values, ids = top_k(mean.reshape(-1, mean.shape[-1]), top)
    return SoftTargets(*(x.reshape(*mean.shape[:-1], top) for x in (ids, jnp.exp(values))))  # type: ignore[arg-type]
