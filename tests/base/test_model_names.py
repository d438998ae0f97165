"""Names of models: by hand, from folders as a run, the library and PEFT write them."""

import json
from pathlib import Path

import pytest

from flaxformer_lite.base.model_names import HubName, full_name, hub_name, is_foreign
from flaxformer_lite.workdir import RunFolder


def test_a_folder_that_exists_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/bert").mkdir(parents=True)
    assert hub_name("models/bert") is None and hub_name("hf://models/bert") == HubName("models/bert", None)
    assert hub_name("org/name") == HubName("org/name", None)
    assert hub_name("org/na-m.e@refs/pr/1") == HubName("org/na-m.e", "refs/pr/1")
    for path in ("bert", "./org/name", "../org/name", "/org/name", "a/b/c", "org/", "~/name"):
        assert hub_name(path) is None
    with pytest.raises(ValueError, match=r"models/bart is not in the folder models; .* is hf://models/bart"):
        hub_name("models/bart")


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({}, False),
        ({"config.json": {"model_type": "bert"}}, True),
        ({"adapter_config.json": {"peft_type": "LORA"}}, True),
        ({"config.json": {"format": 1, "model": {}, "train": {}}}, False),
        ({"config.json": {"model_type": "bert"}, "checkpoints/1/x": {}}, False),
        ({"config.json": []}, False),
        ({"config.json": "{"}, False),
    ],
)
def test_a_folder_is_foreign_by_its_config(files: dict, wanted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        file = tmp_path / "folder" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    (tmp_path / "folder").mkdir(exist_ok=True)
    assert is_foreign("folder") == is_foreign(str(tmp_path / "folder")) == wanted
    assert (
        not is_foreign("folder/none")
        and not is_foreign("none")
        and not is_foreign("s3://a/b")
        and not is_foreign("/a/b")
        and not is_foreign("runs/x")
    )
    assert is_foreign("org/name") and is_foreign("org/name@main") and is_foreign("hf://folder/none")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("gpt2-medium", "openai-community/gpt2-medium"),
        ("xlm-roberta-base", "FacebookAI/xlm-roberta-base"),
        ("distilbert-base-cased", "distilbert/distilbert-base-cased"),
        ("mine", "ORG/NAME"),
    ],
)
def test_a_name_without_its_organisation_is_completed(name: str, wanted: str):
    assert full_name(name) == wanted
    with pytest.raises(ValueError, match=f"import hf {wanted} RUN"):
        RunFolder(Path("nowhere", name)).config()
