"""The model card: README.md of an exported folder, which the Hugging Face hub shows as the model's page."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.config import Config
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.interop.differences import as_words
from flaxformer_lite.interop.options import lookup

CARD = "README.md"
LISTED_SETTINGS = (
    "model.num_encoder_layers",
    "model.num_decoder_layers",
    "model.d_model",
    "model.num_heads",
    "model.d_ff",
    "model.vocab_size",
    "model.positions",
    "data.max_source_length",
)
TRAINING = (
    "objective.kind",
    "optimizer.algorithm.kind",
    "optimizer.schedule.kind",
    "data.tokens_per_batch",
    "train.steps",
    "train.seed",
)
"""Settings of a model that was trained here."""

UNREAD = (
    "The command reads texts by `tokenizer.model`, a SentencePiece model. transformers has no tokenizer for it with an encoder "
    "alone: give the model token ids."
)


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
    teachers: Sequence[Mapping[str, Any]] = ()
    """The models that taught the run: `RunFolder.teachers`."""
    added: Sequence[str] = ()
    """The languages that were added to the run."""
    trimmed_from: int | None = None
    """The number of tokens before some were left out; None: none were."""


def model_card(
    about: About, config: Config, origin: Mapping[str, Any], theirs: Mapping[str, Any], num_parameters: int, files: Path
) -> str:
    """Returns the text of the card.

    `origin` is `imported.json` of an imported run, or of one that started from it, empty for another; `theirs` the exported
    `config.json`; `files` a folder with the tokenizer's files.
    """
    source = origin.get("weights", "")
    architecture = theirs["architectures"][0]
    base = source.removeprefix("hf://").partition("@")[0] if source.startswith("hf://") else None
    header = {"library_name": "transformers", "tags": ["flaxformer_lite"], "license": about.license, "base_model": base}
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in header.items() if value is not None]
    how = f"trained with the objective `{config.objective.kind}` for {about.step:,} steps"
    if origin.get("trained"):
        how = f"imported from {base or 'another checkpoint'}, {how}"
    elif origin:
        how = f"imported from {base or 'another checkpoint'}"
    if about.added:
        how = f"{how}, extended by the languages {', '.join(f'`{code}`' for code in about.added)}"
    if about.trimmed_from is not None:
        how = f"{how}, cut to {config.model.vocab_size:,} of {about.trimmed_from:,} tokens"
    settings = (*LISTED_SETTINGS, *(() if origin and not origin.get("trained") else TRAINING))
    if config.data.rows is not None:
        settings = tuple("data.rows" if path == "data.tokens_per_batch" else path for path in settings)
    sections = [
        "\n".join(["---", *lines, "---"]),
        f"# {about.name.rpartition('/')[2]}",
        f"A model of the family `{theirs['model_type']}` (`{architecture}`) with {num_parameters:,} parameters in float32. "
        f"It was {how} and exported with flaxformer_lite.",
        "## Results\n\n" + ("\n\n".join(map(result, about.results)) or "This model has not been evaluated."),
        "## Configuration\n\n"
        + table(("setting", "value"), [(f"`{path}`", as_words(lookup(config, path)).strip("'")) for path in settings]),
        "## How to use it\n\n" + usage(about.name, config.model, architecture, files),
        f"## Licence\n\n{about.license or 'No licence is stated.'}",
        *([taught_by(about.teachers)] if about.teachers else []),
    ]
    return "\n\n".join(sections) + "\n"


def taught_by(teachers: Sequence[Mapping[str, object]]) -> str:
    """Returns the section of a card on the teachers of a model."""
    rows = [(one["name"], one["license"] or "unknown") for one in teachers]
    return "## Teachers\n\nThe model learned from translations by:\n\n" + table(("model", "licence"), rows)


def stated_license(folder: Path) -> str | None:
    """Returns the licence in the metadata of a folder's model card; None where it states none."""
    file = folder / CARD
    metadata = re.match(r"---\s*\n(.*?)\n---", file.read_text("utf-8", "replace") if file.is_file() else "", re.DOTALL)
    stated = metadata and re.search(r"^license:[ \t]*[\"']?([\w.+-]+)", metadata[1], re.MULTILINE)
    return stated[1] if stated else None


def result(report: Mapping[str, object]) -> str:
    """Returns a report of `evaluate` as a sentence and a table: every metric with sacreBLEU's signature, if it has one."""
    metrics = {name: value for name, value in report.items() if isinstance(value, float)}
    counts = {name: value for name, value in report.items() if type(value) is int and name != "step"}
    weights = [f"weights {report['weights']}"] if "weights" in report else []
    details = [f"step {report['step']:,}", *weights, *(f"{name} {value:,}" for name, value in counts.items())]
    rows = [(name, f"{value:.6g}", report.get(f"{name}_signature", "")) for name, value in metrics.items()]
    width = 3 if any(signature for _, _, signature in rows) else 2
    columns = ("metric", "value", "signature")[:width]
    return f"On `{report['split']}`: {', '.join(details)}.\n\n" + table(columns, [row[:width] for row in rows])


def usage(name: str, model: ModelConfig, architecture: str, files: Path) -> str:
    """Returns the command of this package and the lines of Python that load the model."""
    ours = f"```sh\nflaxformer-lite import hf {name} runs/model\n```"
    unread = not model.num_decoder_layers and {file.name for file in files.glob("tokenizer.*")} == {"tokenizer.model"}
    if model.sentence_embedding is not None and not unread:
        python = f'from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("{name}")'
    else:
        classes = ["AutoTokenizer"] if any(files.glob("*")) and not unread else []
        tokenizer = [f'tokenizer = AutoTokenizer.from_pretrained("{name}")'] if classes else []
        load = [*tokenizer, f'model = {architecture}.from_pretrained("{name}")']
        python = f"from transformers import {', '.join([*classes, architecture])}\n\n" + "\n".join(load)
    return f"{ours}\n\n```python\n{python}\n```" + (f"\n\n{UNREAD}" if unread else "")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a Markdown table."""
    # A signature contains |, which divides cells.
    lines = list[str]()
    for row in [header, ["---"] * len(header), *rows]:
        cells = [str(cell).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
