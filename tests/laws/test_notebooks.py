"""Law: the notebooks run from top to bottom, and are kept with what they show: a badge, an install, pictures."""

import inspect
import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
INSTALL = 'import importlib.util\n\nif importlib.util.find_spec("flaxformer_lite") is None:\n    %pip install -q '
COLAB = "https://colab.research.google.com/github/flaxformer-lite/flaxformer_lite/blob/main/notebooks/"


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the cells of one kind, each with its source as one text."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in found if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_with_its_outputs(path: Path):
    texts, code = cells(path, "markdown"), cells(path, "code")
    assert f"({COLAB}{path.name})" in texts[0]["source"]
    assert code[0]["source"].startswith(INSTALL)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run it from top to bottom"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    shown = json.dumps(outputs)
    assert not re.findall(r"/(?:home|root|tmp|work)/", shown), "an output names a folder of the machine that ran it"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_are_short(path: Path):
    """One idea a cell; an idea with a picture takes some twenty lines."""
    for cell in cells(path, "code"):
        assert len(cell["source"].splitlines()) <= 30, cell["source"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_may_be_run_again_from_top_to_bottom(path: Path):
    """What makes a folder, which a command refuses to make twice, stands below a look at the folder."""
    for cell in cells(path, "code"):
        for before, line in itertools.pairwise(["", *cell["source"].splitlines()]):
            makes = re.match(r"\s*(main\(\[\"(import|export)\"|extend\(|(\w+\.)?(import|export)_\w+\()", line)
            assert makes is None or ".exists():" in before or "overwrite" in line, line


SMALL = "--model.num-encoder-layers 1 --model.num-decoder-layers 1 --model.scan-unroll 1"
DATES = (
    "--model.d-model 16 --model.d-ff 16 --model.scan-unroll 1 --train.log-every 10 --train.eval-every 10 "
    "--data.bucket-lengths 40 --data.train.num-examples 640 --data.eval.num-examples 20"
)
TOYS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "quickstart": ({"quickstart": DATES}, {"STEPS = 600": "STEPS = 20"}),
    "read_attention": ({"quickstart": DATES}, {"STEPS = 600": "STEPS = 20"}),
    "your_parallel_text": ({"multi30k_en_de_raw": SMALL}, {"STEPS = 200": "STEPS = 20", "(16, 32)": "(32,)"}),
    "my_language": (
        {},
        {"STEPS = 400": "STEPS = 20", "FINE_STEPS = 350": "FINE_STEPS = 8", '("test", 100)': '("test", 5)'},
    ),
    "language_model": (
        {"char_lm": "--model.d-model 32 --model.d-ff 64 --model.num-decoder-layers 1"},
        {"STEPS = 600": "STEPS = 20", "[a-i]*.py": "g*.py"},
    ),
    "finetune_bert": (
        {"bert_base": "--model.num-encoder-layers 1"},
        {
            "STEPS = 300": "STEPS = 20",
            "examples(30), examples(40)": "examples(10), examples(2)",
            '"train.log_every": 200': '"train.epochs": 1.0',
        },
    ),
    "names_and_search": (
        {
            "tiny_modernbert": "--model.d-model 16 --model.d-ff 32 --model.num-encoder-layers 1 --model.scan-unroll 1 "
            "--model.sliding-window.layers 0 --optimizer.schedule.warmup-steps 2",
            "label_code_names": "--optimizer.schedule.warmup-steps 2 --data.bucket-lengths 96",
            "search_topics": "--optimizer.schedule.warmup-steps 2",
        },
        {
            "STEPS = 1_400": "STEPS = 4",
            "FINE_STEPS = 200": "FINE_STEPS = 4",
            "FINE_STEPS // 8": "FINE_STEPS",
            "SEARCH_STEPS = 120": "SEARCH_STEPS = 4",
            "64 128 320": "320",
            "[:20]": "[:2]",
        },
    ),
    "chat_with_adapters": (
        {
            "chat_dates": "--model.d-model 32 --model.d-ff 64 --model.num-decoder-layers 1 --model.scan-unroll 1 "
            "--data.train.num-examples 480 --data.eval.num-examples 20 --optimizer.schedule.warmup-steps 2",
            "chat_dates_lora": "--optimizer.schedule.warmup-steps 2",
        },
        {
            "STEPS = 600": "STEPS = 4",
            "FINE_STEPS = 200": "FINE_STEPS = 8",
            "warmup_steps=20": "warmup_steps=2",
            '"train", 3_000': '"train", 100',
            '"valid", 300': '"valid", 20',
            "chats[:50]": "chats[:1]",
        },
    ),
    "translator_for_a_phone": (
        {
            "quickstart": "--model.d-model 16 --model.d-ff 16 --model.vocab-size 160",
            "multi30k_en_de_rotary": "--decode.beam-size 1 --train.text-metrics --train.best-metric loss",
        },
        {
            "STEPS = 300": "STEPS = 20",
            '"train", 50_000': '"train", 300',
            '"train", 400': '"train", 60',
            '"train", 12_000': '"train", 20',
            '"held_out", 500': '"held_out", 5',
            "import pair": "import pair\npair.recipe.SIZES = (pair.recipe.Size(1_000, 16, 16, 1, 2, 0.0),) * 2\n"
            "pair.recipe.EPOCHS, pair.recipe.SHAPES = (10, 10), (1, 1)\n"
            "pair.making.report_once = pair.making.int8_scored_once = lambda *given: None",
            "HOURS = 0.15": "HOURS = None",
            'KEEP = ("identical", "length")': "KEEP = tuple(pair.RULES)",
            "keep=KEEP, hours=HOURS, models": "keep=(*KEEP, *pair.OF_ANSWERS), hours=HOURS, models",
        },
    ),
    "many_devices_and_plan": (
        {},
        {
            "STEPS = 12": "STEPS = 2",
            'NAMES = ["transformer_base_wmt14", ': "NAMES = [",
            "else:\n    main": "elif False:\n    main",
        },
    ),
}
"""The toy size of a notebook: flags that are added to those of a config, and texts that are replaced in its cells."""


GROUPS = {"read_attention": "quickstart"}
"""The notebook whose run another one reads: one process runs both with `--dist loadgroup`."""


def toy(source: str, replaced: dict[str, str]) -> str:
    """Returns a cell's source with a toy's numbers in the place of its own."""
    for text, other in replaced.items():
        source = re.sub(rf"(?m)(?<!\w){re.escape(text)}", other, source)
    return source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_its_toy_replaces_is_in_it(path: Path):
    _, replaced = TOYS[path.stem]
    source = "\n\n".join(cell["source"] for cell in cells(path, "code"))
    assert [text for text, other in replaced.items() if toy(source, {text: other}) == source] == []


def test_the_data_of_names_and_search_is_written_by_the_lines_of_the_guide():
    """So that its figures stand beside those of the recipes."""
    guide = (ROOT / "lab/recipes.md").read_text(encoding="utf-8")
    code = [cell["source"] for cell in cells(ROOT / "notebooks/names_and_search.ipynb", "code")]
    assert len([source for source in code if source in guide]) == 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all notebooks, as a reader has: `read_attention` finds the run of `quickstart` there."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.xdist_group(GROUPS.get(path.stem, path.stem))) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_it_runs_from_top_to_bottom(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """At toy size, in a folder that was empty, with this checkout's package."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", os.environ["FLAXFORMER_LITE_TEST_CACHE"])
    # One device, as a user has, or as many as the notebook asks for
    monkeypatch.setenv("XLA_FLAGS", re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"]))
    notebook, (flags, replaced) = nbformat.read(path, as_version=4), TOYS[path.stem]
    for cell in notebook.cells:
        cell.source = toy(cell.source, replaced)
    if flags:
        cell = f"""
            import flaxformer_lite.config

            def with_toy(name, words=(), load=flaxformer_lite.config.load_config, toys={flags!r}):
                return load(name, [*words, *toys.get(name, "").split()])

            flaxformer_lite.config.load_config = with_toy
        """
        notebook.cells.insert(0, nbformat.v4.new_code_cell(inspect.cleandoc(cell)))
    client = nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()  # raises with the cell that fails
