"""Older names of settings. Oracle: the records' own settings, which each message must name."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.config.options import apply_options, value_of
from flaxformer_lite.config.renamed import RECORDS
from flaxformer_lite.config.serialize import as_tree, from_json, from_tree, to_json
from flaxformer_lite.core.base.annotations import type_hints
from flaxformer_lite.files import records
from flaxformer_lite.files.data import CSV, TSV, HubDataset, JSONLines
from tests.support.experiments import tiny_config
from tests.support.wrong_names import messages_on

OLD = ("source_field", "target_column", "label_field", "label_separator", "input_column", "messages_field", "word_column",
       "negatives_columns", "scores_fields", "words_field", "word_labels_field", "spans_field")  # fmt: skip


def test_each_record_that_a_message_names_exists():
    for text in RECORDS.values():
        for part in text.split(")")[:-1]:
            name, _, settings = part.rpartition(" ")[2].rpartition("(") if "(" not in part else part.partition("(")
            kind = getattr(records, name.split()[-1])
            given = {one.partition("=")[0].strip() for one in settings.split(",")}
            assert given <= {field.name for field in dataclasses.fields(kind)}, text


@pytest.mark.parametrize("name", OLD)
def test_an_older_name_is_refused_with_the_new_one(name: str, tmp_path: Path):
    config = dataclasses.replace(tiny_config(), data=dataclasses.replace(tiny_config().data, train=TSV(path="x")))
    imported, call = "from flaxformer_lite.files.data import TSV", f"TSV(path='x', {name}='x')"
    typed, read, run = messages_on(config, "data.train", name, imported, call, tmp_path)
    assert re.search(r"there is no option .*; it is now in a source's record: \w+\(", typed)
    assert f"there is no setting data.train.{name}; it is now in a source's record" in read
    assert re.search(r"mine\.py, line 5: TypeError: .*; it is now in a source's record", run)
    for said in (typed, read, run):
        assert len(said.splitlines()) == 1


def test_a_record_is_chosen_and_set_by_options():
    """By hand: a variant, then its fields; the default record takes its fields as they are."""
    data = dataclasses.replace(
        tiny_config().data, train=TSV(path="x"), eval=HubDataset(path="y"), test=CSV(path="z", header=True)
    )
    config = apply_options(
        dataclasses.replace(tiny_config(), data=data),
        [
            "--data.train.record.source",
            "2",
            "--data.eval.record",
            "documents",
            "--data.eval.record.text",
            "body",
            "--data.test.record",
            "documents",
            "--data.test.record.text",
            "a.b",
        ],
    )
    assert config.data.train == TSV(path="x", record=records.Pairs(source=2, target=1))
    assert config.data.eval == HubDataset(path="y", record=records.Documents(text="body"))
    assert config.data.test == CSV(path="z", header=True, record=records.Documents(text="a.b"))
    assert from_json(to_json(config)) == config
    several = value_of(type_hints(records.Classes)["label"], ["toxic", "rude"])
    assert several == ("toxic", "rude") and value_of(type_hints(records.Classes)["label"], ["1"]) == 1


@pytest.mark.parametrize("record", [
    records.Classes(label=("toxic", "rude")), records.Words(words=1, labels="tag", sentence=0),
    records.Candidates(scores=("a", "b")), records.Entities(), records.Conversations(),
])  # fmt: skip
def test_a_record_survives_json(record: records.RecordKinds):
    source = CSV(path="x", header=True, record=record)
    tree = json.loads(json.dumps(as_tree(source)))
    assert from_tree(tree, CSV | JSONLines, "data.train") == source


def test_a_setting_that_is_gone_is_told_and_a_run_that_had_it_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """An option and a Python config are refused; config.json of an older run is read, with one line if it was set."""
    config, text = tiny_config(), "it is gone: a run trains in a bucket by --workdir gs://BUCKET/RUN"
    with pytest.raises(ValueError, match=f"there is no option --train.mirror; {text}"):
        apply_options(config, ["--train.mirror", "x"])
    (tmp_path / "mine.py").write_text(
        "from flaxformer_lite.config import TrainConfig\n\n\ndef get_config():\n    return TrainConfig(mirror='x')\n"
    )
    with pytest.raises(ValueError, match=rf"mine\.py, line 5: TypeError: .*; {text}"):
        load_config(str(tmp_path / "mine.py"))
    tree = json.loads(to_json(config))
    for value, lines in ((None, 0), ("s3://bucket/run", 1)):
        tree["train"]["mirror"] = value
        assert from_json(json.dumps(tree)) == config
        assert (
            capsys.readouterr().err.count("train.mirror is 's3://bucket/run', a setting that is gone: a run") == lines
        )
