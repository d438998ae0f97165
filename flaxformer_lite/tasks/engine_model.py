"""The model of a run, by CTranslate2 and NumPy: the last layer of a model without a decoder, and its heads."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from flaxformer_lite.base.console import note_once
from flaxformer_lite.core.base.mistake import known
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.placement.batches import InputBatch, pad_rows, plan_batches
from flaxformer_lite.core.reading.heads import DenseLayer, Pooler, SentenceEmbedding
from flaxformer_lite.core.reading.objectives import objective_of
from flaxformer_lite.core.text import EncodedText
from flaxformer_lite.core.text.special_ids import check_length
from flaxformer_lite.engine.engine_run import open_export
from flaxformer_lite.engine.exports import OwnConfig, RunWeights
from flaxformer_lite.engine.heads import NumpyHeads
from flaxformer_lite.engine.rules import CannotAnswer
from flaxformer_lite.engine.search import Sizes
from flaxformer_lite.tasks.task import TextModel, Wanted

HEADS_FILE = "heads.npz"
"""The file of an export with the parameters of the heads, by their paths."""
BATCH_TOKENS = 512
"""The most tokens of a batch, padding included: larger ones leave the cache of a core, and take a fifth longer."""


@dataclass(frozen=True)
class EngineModel(TextModel):
    """An encoder that CTranslate2 has read."""

    engine = "ctranslate2"
    facts: Mapping[str, Any]
    """The facts of its export."""
    library: Any
    """CTranslate2's encoder."""
    heads: NumpyHeads
    otherwise: Callable[[], TextModel] | None = None
    """Returns the model of JAX, for the rows that CTranslate2 reads otherwise; None: they are refused."""

    @property
    def origin(self) -> list[tuple[int, str, str]]:
        """The step and the digests of the run that was exported, as `Run.origin`."""
        return [tuple(self.facts["origin"])]

    def read(self, wanted: Wanted, rows: Sequence[EncodedText], progress: ProgressCallback) -> list[Any]:
        """Returns what is wanted of each row. Raises: ValueError for a row that is longer than the model's positions."""
        for number, row in enumerate(rows):
            with known(subject=f"text {number}"):
                check_length(len(row.tokens), Sizes(*self.facts["sizes"]).positions)
        settings: Any = self.config.model
        others = [i for i, row in enumerate(rows) if not row.tokens or settings.position_padding_id in row.tokens]
        answers = dict(zip(others, self.by_jax(wanted, [rows[i] for i in others]), strict=True))
        left = [i for i in range(len(rows)) if i not in answers]
        sizes = [len(rows[i].tokens) for i in left]
        batches = plan_batches(sizes, BATCH_TOKENS, padded=int)  # no longer than their longest
        head = getattr(self.heads, wanted)
        array = sys.modules["ctranslate2"].StorageView.from_array
        last_type = settings.num_token_types - 1

        def answered(batch: InputBatch) -> Any:
            shape = (len(batch.members), batch.length)
            tokens, types = zip(*(rows[left[i]] for i in batch.members), strict=True)
            lengths = np.array(list(map(len, tokens)), np.int32)
            kinds = np.minimum(pad_rows(types, shape), last_type).tolist() if last_type > 0 else None
            output = self.library.forward_batch(array(pad_rows(tokens, shape)), array(lengths), kinds)
            return head(np.asarray(output.last_hidden_state), np.arange(batch.length) < lengths[:, None])

        with ThreadPoolExecutor(self.library.num_encoders) as threads:
            for batch, found in zip(batches, threads.map(answered, batches), strict=True):
                answers |= zip((left[i] for i in batch.members), found, strict=True)
                progress("predicting", len(answers), len(rows))
        return [answers[i] for i in range(len(rows))]

    def by_jax(self, wanted: Wanted, rows: Sequence[EncodedText]) -> list[object]:
        """Returns what is wanted of rows without a token, or with padding within, which takes up a position in CTranslate2."""
        if not rows:
            return []
        reason = "a text has no token, or padding (model.position_padding_id) within"
        if self.otherwise is None:
            raise CannotAnswer(f"{reason}: leave it out")
        note_once(f"engine jax, in float32, for such a text: {reason}")
        return self.otherwise().read(wanted, rows, no_progress)


def open_model(
    wanted: RunWeights,
    own: OwnConfig,
    otherwise: Callable[[], TextModel] | None = None,
    check: Callable[[TextModel], object] = lambda model: None,
) -> EngineModel:
    """Returns a model as CTranslate2 reads it. otherwise: see `EngineModel`. check: raises if the model lacks a head.

    Raises: as `open_export` and, before an export is made, as `check`, and CannotAnswer for a model with a decoder.
    """
    unopened = EngineModel(wanted.run, None, None, {}, None, NumpyHeads(None, None, {}), otherwise)  # type: ignore[arg-type]
    # The config may be of another release: an export has one of this release.
    with contextlib.suppress(LookupError, TypeError):
        check(replace(unopened, config=config_of(own.tree)))
    if own.kind != "Encoder":
        raise CannotAnswer("here CTranslate2 reads texts in one pass only by encoders, and fills no masks")
    export, library, tokenizers = open_export(wanted, own.kind)
    config = config_of(export.facts["config"])
    config.data.texts_of_rows = {*export.facts["texts_of_rows"]}
    with np.load(export.folder / HEADS_FILE) as arrays:
        heads = NumpyHeads(config.model.pooler, config.model.sentence_embedding, dict(arrays))
    return replace(unopened, config=config, tokenizers=tokenizers, facts=export.facts, library=library, heads=heads)


def config_of(tree: Mapping[str, Any]) -> Any:
    """Returns the part of a run's config that answers need, from its settings as JSON has them."""
    model, data = tree["model"], tree["data"]
    pooler, vector = model["pooler"], model["sentence_embedding"]
    if vector is not None:
        vector = SentenceEmbedding(**vector | {"dense": tuple(DenseLayer(**layer) for layer in vector["dense"])})
    return SimpleNamespace(
        model=SimpleNamespace(
            **{name: model[name] for name in ("num_token_types", "position_padding_id", "num_decoder_layers", "head")},
            continues_texts=not model["num_encoder_layers"] and model["head"] is not None,
            output_width=model["d_model"],
            estimator=None,
            pooler=None if pooler is None else Pooler(**pooler),
            sentence_embedding=vector,
            has_two_stacks=bool(model["num_encoder_layers"] and model["num_decoder_layers"]),
        ),
        objective=objective_of(tree["objective"]),
        data=SimpleNamespace(max_source_length=data["max_source_length"], train=data["train"], texts_of_rows=set()),
    )
