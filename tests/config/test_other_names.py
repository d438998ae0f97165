"""Names of other toolkits. Oracles: transformers' own list of names, and the settings that each message and the page must name."""

import dataclasses
import re
from pathlib import Path

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.config.options import as_option
from flaxformer_lite.config.other_names import HABITS, habit
from flaxformer_lite.config.settings import MARKS
from tests.support.experiments import tiny_config
from tests.support.paths import ROOT
from tests.support.wrong_names import messages_on

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").partition("### Names of other toolkits")[2]
ROWS = re.findall(r"^\| (`.*?) \| (.*) \|$", PAGE.partition("\n## ")[0], re.M)
NAMED = [(name, there) for names, there in ROWS for name in re.findall("`(.+?)`", names)]
NAMES = [name for names in HABITS for name in names.split()]
OF_OTHERS = {
    *(
        "num_epochs",
        "epochs",
        "train_batch_size",
        "batch_size",
        "eval_batch_size",
        "lr",
        "lr_scheduler",
        "warmup",
        "warmup_ratio",
    ),
    *(
        "beta1",
        "beta2",
        "betas",
        "overwrite_output_dir",
        "model_name_or_path",
        "model_name",
        "evaluation_strategy",
        "logging_dir",
    ),
    *("early_stopping_patience", "group_by_length", "max_length", "max_seq_length", "model_max_length", "block_size"),
    *("num_workers", "drop_last", "no_cuda"),
}
"""Names of older releases, of its scripts, and of other toolkits."""


def test_each_setting_that_a_message_names_exists():
    for text in HABITS.values():
        assert {*re.findall(r"\{(.+?)\}", text)} <= {*MARKS}, text


def test_the_names_are_those_of_the_library():
    arguments = pytest.importorskip("transformers").TrainingArguments
    assert {*NAMES} - OF_OTHERS <= {field.name for field in dataclasses.fields(arguments)}


@pytest.mark.parametrize(("name", "there"), NAMED)
def test_the_page_names_settings_that_exist_and_messages_name_them_too(name: str, there: str):
    settings = re.findall("`(.+?)`", there)
    assert settings and {*settings} <= {*MARKS}
    with pytest.raises(ValueError) as caught:
        load_config("char_lm", [f"--{name}", "1"])
    said = str(caught.value)
    for setting in settings:
        assert as_option(setting) in said, said


def test_the_page_has_at_least_twenty_rows():
    assert len(ROWS) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_answered_on_the_command_line_in_files_and_in_json(name: str, tmp_path: Path):
    text = habit(name)
    first = re.search(r"\{(.+?)\}", text)
    imported, call = "from flaxformer_lite.config import TrainConfig", f"TrainConfig({name}=1)"
    typed, read, run = messages_on(tiny_config(), "train", name, imported, call, tmp_path)
    assert "there is no option" in typed
    assert f"there is no setting train.{name}; " in read
    assert re.search(r"mine\.py, line 5: TypeError: TrainConfig.*; ", run)
    for said in (typed, read, run):
        shown = as_option(first[1]) if first and said is typed else first[1] if first else text
        assert shown in said and "{" not in said and len(said.splitlines()) == 1, said


def test_the_mistake_of_another_class_gets_no_setting(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("class Own:\n    pass\n\n\ndef get_config():\n    return dict().get(lr=1) or Own(lr=1)\n")
    with pytest.raises(ValueError, match="TypeError") as caught:
        load_config(str(file))
    assert "peak_rate" not in str(caught.value)
