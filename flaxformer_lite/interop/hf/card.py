"""The model card: README.md of an exported folder, which the Hugging Face hub shows as the model's page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.model.config import ModelConfig


class About(NamedTuple):
    """Facts of a card that the exported files do not hold."""

    name: str
    """ORG/NAME, or the folder's name."""
    step: int
    """The step of the exported parameters."""
    results: Sequence[Mapping[str, Any]]
    """Reports of `evaluate` on these parameters."""
    license: str | None = None
    """Identifier of a licence, such as mit; None: the card states none."""


def model_card(
    about: About, config: Config, origin: Mapping[str, Any], theirs: Mapping[str, Any], num_parameters: int, files: Path
) -> str:
    """Returns the text of the card.

    Args:
        config: The config of the run.
        origin: `imported.json` of an imported run; empty for another run.
        theirs: The exported `config.json`.
        files: A folder with the tokenizer's files.
    """
    source = origin.get("weights", "")
    base = source.removeprefix("hf://").partition("@")[0] if source.startswith("hf://") else None
    header = {"library_name": "transformers", "tags": ["flaxformer_lite"], "license": about.license, "base_model": base}
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in header.items() if value is not None]
    sections = [
        "\n".join(["---", *lines, "---"]),
        f"# {about.name.rpartition('/')[2]}",
        description(about, config, theirs, num_parameters, base if base or not origin else "another checkpoint"),
        "## Results\n\n" + ("\n\n".join(map(result, about.results)) or "This model has not been evaluated."),
        "## Configuration\n\n" + table(("setting", "value"), settings(config, trained=not origin)),
        "## How to use it\n\n" + usage(about.name, config, theirs["architectures"][0], files),
        f"## Licence\n\n{about.license or 'No licence is stated.'}",
    ]
    return "\n\n".join(sections) + "\n"


def description(about: About, config: Config, theirs: Mapping[str, Any], num_parameters: int, base: str | None) -> str:
    """Returns a sentence on what the model is, and one on where its weights come from."""
    family, architecture = theirs["model_type"], theirs["architectures"][0]
    what = f"A model of the family `{family}` (`{architecture}`) with {num_parameters:,} parameters in float32."
    how = f"trained with the objective `{config.objective.kind}` for {about.step:,} steps"
    if base is not None:
        how = f"imported from {base}"
    return f"{what} It was {how} and exported with flaxformer_lite."


def result(report: Mapping[str, Any]) -> str:
    """Returns a report of `evaluate` as a sentence and a table: every metric with sacreBLEU's signature, if it has one."""
    metrics = {name: value for name, value in report.items() if isinstance(value, float)}
    counts = {name: value for name, value in report.items() if type(value) is int and name != "step"}
    details = [f"step {report['step']:,}", *(f"{name} {value:,}" for name, value in counts.items())]
    if "weights" in report:
        details.insert(1, f"weights {report['weights']}")
    rows = [(name, f"{value:.6g}", report.get(f"{name}_signature", "")) for name, value in metrics.items()]
    width = 3 if any(signature for _, _, signature in rows) else 2
    columns = ("metric", "value", "signature")[:width]
    return f"On `{report['split']}`: {', '.join(details)}.\n\n" + table(columns, [row[:width] for row in rows])


def settings(config: Config, trained: bool) -> list[tuple[str, Any]]:
    """Returns the settings that describe a model, and its training unless it was imported."""
    model, optimizer = config.model, config.optimizer
    found: list[tuple[str, Any]] = [
        ("model.num_encoder_layers", model.num_encoder_layers),
        ("model.num_decoder_layers", model.num_decoder_layers),
        ("model.d_model", model.d_model),
        ("model.num_heads", model.num_heads),
        ("model.d_ff", model.d_ff),
        ("model.vocab_size", model.vocab_size),
        ("model.positions", type(model.positions).__name__),
        ("data.max_source_length", config.data.max_source_length),
    ]
    if model.num_decoder_layers and model.head is not None:
        found.append(("decode.beam_size", config.decode.beam_size))
    if trained:
        found += [
            ("objective.kind", config.objective.kind),
            ("optimizer.algorithm.kind", optimizer.algorithm.kind),
            ("optimizer.schedule.kind", optimizer.schedule.kind),
            ("data.tokens_per_batch", config.data.tokens_per_batch),
            ("train.steps", config.train.steps),
            ("train.seed", config.train.seed),
        ]
    return [(f"`{name}`", value) for name, value in found]


def usage(name: str, config: Config, architecture: str, files: Path) -> str:
    """Returns the commands of this package and the lines of Python that load the model."""
    ours = (
        f"```sh\nflaxformer-lite import hf {name} runs/model\nflaxformer-lite {command(config.model)} runs/model\n```"
    )
    if config.model.sentence_embedding is not None:
        python = f'from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("{name}")'
    elif any(files.glob("*")):
        python = (
            f"from transformers import AutoTokenizer, {architecture}\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("{name}")\nmodel = {architecture}.from_pretrained("{name}")'
        )
    else:
        python = f'from transformers import {architecture}\n\nmodel = {architecture}.from_pretrained("{name}")'
    return f"{ours}\n\n```python\n{python}\n```"


def command(model: ModelConfig) -> str:
    """Returns the command that uses such a model."""
    if model.sentence_embedding is not None:
        return "embed"
    if model.head is None:
        return "classify" if model.pooler is not None and model.pooler.num_classes else "inspect"
    if model.num_decoder_layers == 0:
        return "fill-mask"
    return "translate" if model.num_encoder_layers else "generate"


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table."""
    # A signature contains |, which divides cells.
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in [header, ["---"] * len(header), *rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
