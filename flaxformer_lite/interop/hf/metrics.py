"""Metrics of translations: MetricX and COMET. A folder of their encoder with two more files, as docs/neural-scores.md makes it.

    metric.json          which metric it is, and its settings
    metric.safetensors   the weights after the encoder, or after the decoder

References: Juraska et al. 2023, WMT, "MetricX-23"; Juraska et al. 2024, arXiv:2410.03983; Rei et al. 2020, arXiv:2009.09025,
COMET.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flaxformer_lite.core.model import Estimator, LayerMix, ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.core.objectives import Regression
from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.interop.hf.sentence import PoolingName
from flaxformer_lite.interop.name_map import Names, Tensors, WeightName, name_map
from flaxformer_lite.interop.options import Options
from flaxformer_lite.interop.weight_files import read_file

SETTINGS, WEIGHTS = "metric.json", "metric.safetensors"
METRICX: dict[str, tuple[str, str, int]] = {
    "23": ("candidate: {translation} reference: {reference}", "", 1023),
    "23-qe": ("", "candidate: {translation} source: {source}", 1023),
    "24": (
        "source: {source} candidate: {translation} reference: {reference}",
        "source: {source} candidate: {translation}",
        1535,
    ),
}
"""The text that each version reads, with a reference and without one, and its most tokens."""
WORST = 25.0
"""The number of the worst translation in MetricX; the best has 0."""
POOLINGS: dict[str, PoolingName] = {"avg": "mean", "max": "max", "cls": "cls"}
LAYER_WEIGHTS: dict[str, Literal["softmax", "sparsemax"]] = {"softmax": "softmax", "sparsemax": "sparsemax"}
COMET = {"regression_metric": True, "referenceless_regression_metric": False}
"""Whether a reference is read, by the class in COMET."""


class Metric(NamedTuple):
    """The parts of a metric: the model with its additional weights, and its objective."""

    model: ModelConfig
    objective: Regression
    names: list[WeightName]
    """The weights after the encoder or the decoder."""
    tensors: Tensors
    max_length: int | None


def read_metric(folder: Path, model: ModelConfig, max_length: int | None) -> Metric | None:
    """Returns the metric of the model in a folder, or None. Raises: ValueError that names what does not fit."""
    if not (folder / SETTINGS).is_file():
        return None
    options = Options(read_json(folder / SETTINGS), f"{SETTINGS}: ")
    read = {"metricx": read_metricx, "comet": read_comet}[options.text("metric", among=("metricx", "comet"))]
    rated, objective, names, longest = read(options, model)
    options.finish()
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder} has {SETTINGS}, but no {WEIGHTS} with the weights of the metric: convert it again")
    longest = min((length for length in (longest, max_length) if length is not None), default=None)
    return Metric(rated, objective, name_map(names, rated), read_file(folder / WEIGHTS), longest)


def read_metricx(options: Options, model: ModelConfig) -> tuple[ModelConfig, Regression, Names, int | None]:
    """Reads an mT5 whose decoder gives one number at its first step: a row of the head that language models have."""
    version = options.text("version", among=METRICX)
    if not model.has_two_stacks or model.head is not None:
        raise options.wrong("metric", "it needs the encoder and the decoder of an mT5 without its head")
    with_reference, without_reference, longest = METRICX[version]
    pooler = Pooler(token="first", activation=None, num_classes=1, class_bias=False)
    objective = Regression(
        best="lowest", bounds=(0.0, WORST), with_reference=with_reference, without_reference=without_reference
    )
    return dataclasses.replace(model, pooler=pooler), objective, {"pooler/classes": "lm_head"}, longest


def read_comet(options: Options, model: ModelConfig) -> tuple[ModelConfig, Regression, Names, int | None]:
    """Reads an encoder with a mix of its layers, a pooled vector for each text, and dense layers over the vectors."""
    kind = options.text("class_identifier", among=COMET)
    options.only("layer", "mix")
    options.only("activations", "Tanh")
    options.only("final_activation", None)
    if model.num_decoder_layers or model.pooler is not None or model.head is not None:
        raise options.wrong("metric", "it needs an encoder without heads and pooler")
    widths = options.items("hidden_sizes")
    if not widths or any(type(width) is not int for width in widths):
        raise options.wrong("hidden_sizes", "it should be a list of widths")
    rated = dataclasses.replace(
        model,
        layer_mix=LayerMix(
            weights=LAYER_WEIGHTS[options.text("layer_transformation", "softmax", LAYER_WEIGHTS)],
            normalize=options.flag("layer_norm"),
        ),
        sentence_embedding=SentenceEmbedding(pooling=POOLINGS[options.text("pool", among=POOLINGS)], normalize=False),
        estimator=Estimator(reference=COMET[kind], widths=tuple(widths)),
    )
    names: dict[str, Any] = {"encoder/layer_mix/weights": "layer_weights", "encoder/layer_mix/factor": "gamma"}
    names |= {f"estimator/dense_{i}": f"estimator.ff.{3 * i}" for i in range(len(widths) + 1)}
    return rated, Regression(), names, None
