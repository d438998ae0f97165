"""Law: the recipes of lab/recipes.md can be followed: their lines of Python write the data that their configs read."""

import gzip
import json
import random
import runpy
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite.config import load_config
from flaxformer_lite.core.objectives import Classification
from flaxformer_lite.files.data import TSV, JSONLines
from flaxformer_lite.tools.search.folder import read_search_folder
from tests.support.doc_commands import python_blocks
from tests.support.experiments import use_one_device
from tests.support.paths import ROOT

SMALL = "--model.d-model 16 --model.d-ff 16 --model.scan-unroll 1 --train.steps 2 --train.eval-every 2"
SMALL += " --train.checkpoint-every 2 --optimizer.schedule.warmup-steps 0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with the data of the recipes."""
    monkeypatch.chdir(tmp_path)
    for block in python_blocks(ROOT / "lab" / "recipes.md"):
        if "def get_config" not in block:
            exec(block, {})
    return tmp_path


@pytest.mark.slow
def test_the_data_are_what_the_configs_say(folder: Path):
    """Numbers of the headers; no text is on both sides."""
    config = load_config("classify_docstrings")
    train, valid = config.data.train, config.data.eval
    assert isinstance(train, TSV) and isinstance(valid, TSV) and isinstance(config.objective, Classification)
    of_train, of_valid = list(train.open()), list(valid.open())
    for pairs, number in ((of_train, 40), (of_valid, 50)):
        labels = [pair.label for pair in pairs]
        assert {label: labels.count(label) for label in labels} == dict.fromkeys(config.objective.classes, number)
    assert not {pair.target for pair in of_train} & {pair.target for pair in of_valid}
    data = load_config("label_code_names").data
    assert isinstance(data.train, JSONLines) and isinstance(data.eval, JSONLines)
    assert [len(list(source.open())) for source in (data.train, data.eval)] == [500, 300]
    search = read_search_folder(folder / "topics")
    assert abs(len(search.corpus) - 653) < 70 and abs(len(search.queries) - 121) < 20  # other versions of Python differ
    data = load_config("chat_dates_lora").data
    assert isinstance(data.train, JSONLines) and isinstance(data.eval, JSONLines)
    dates = []
    for source, number in ((data.train, 3_000), (data.eval, 300)):
        chats = [json.loads(pair.target)["messages"] for pair in source.open()]
        assert len(chats) == number and {len(chat) for chat in chats} == {6}
        dates.append({chat[1]["content"] for chat in chats})
    assert not dates[0] & dates[1]


@pytest.mark.slow
@pytest.mark.parametrize(("base", "name"), [("quickstart", "dates_before_1900"), ("chat_dates", "chat_dates_lora")])
def test_a_recipe_continues_its_base(base: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """On small bases of two steps."""
    use_one_device(monkeypatch)
    small = [*SMALL.split(), *(["--train.text-metrics", "--data.bucket-lengths", "40"] if base == "quickstart" else [])]
    sizes = ["--data.train.num-examples", "640", "--data.eval.num-examples", "20"]
    flaxformer_lite.train(load_config(base, [*small, *sizes]), f"runs/{base}")
    if name == "chat_dates_lora":
        for file in folder.glob("chats/*.jsonl"):
            file.write_text("".join(file.read_text(encoding="utf-8").splitlines(keepends=True)[:50]), encoding="utf-8")
    run = flaxformer_lite.train(load_config(name, small), f"runs/{name}")
    assert run.step == 2


@pytest.mark.slow
def test_a_metric_learns_from_planted_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: the three commands of docs/neural-scores.md, on small files; of each two rows the second has the error."""
    monkeypatch.chdir(tmp_path)
    use_one_device(monkeypatch)
    (tmp_path / "data").mkdir()
    for split in ("train", "val", "test_2016_flickr"):
        for code, text in {
            "en": "Two dogs run through field {}.",
            "de": "Zwei Hunde laufen durch ein Feld {}.",
        }.items():
            with gzip.open(f"data/{split}.{code}.gz", "wt", encoding="utf-8") as file:
                file.write("".join(text.format(i) + "\n" for i in range(60)))
    script = runpy.run_path(str(ROOT / "examples" / "planted_errors.py"))
    script["main"]("data", "en", "de")
    rows = [json.loads(line) for line in Path("rated/test.jsonl").read_text(encoding="utf-8").splitlines()]
    right, wrong = rows[::2], rows[1::2]
    assert [row["rating"] for row in rows] == [1, 0] * 60 and {row["kind"] for row in wrong} == {"wrong number"}
    assert all(one["source"] == other["source"] and one != other for one, other in zip(right, wrong, strict=True))
    words = ["Zwei", "Hunde", "laufen", "durch", "ein", "Feld"]
    for kind in script["KINDS"]:
        found = {tuple(script["planted"](kind, ["dogs"], words, random.Random(seed))) for seed in range(9)}
        assert tuple(words) not in found and len(found) > (kind != "negation")
    small = [*SMALL.split(), "--model.vocab-size", "61"]
    flaxformer_lite.train(
        load_config("read_translations", [*small, "--objective.mask-token", "60"]), "runs/read_translations"
    )
    run = flaxformer_lite.train(load_config("rate_translations", small), "runs/rate_translations")
    assert run.rate(["Two dogs."], ["Zwei Hunde."]).shape == (1,)
