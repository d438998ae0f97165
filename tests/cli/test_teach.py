"""Laws of `teach`: a student trains on what it wrote; mistakes are one line."""

import dataclasses
from pathlib import Path

import pytest

from flaxformer_lite.cli.main import main
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.text.kinds import FromRun
from flaxformer_lite.run import write_run
from flaxformer_lite.tools.research import Distillation, Predictions
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.experiments import normal_params, rows, tiniest_config, with_train, write_config_file


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """A run folder with random parameters."""
    config = tiniest_config()
    assert config.data.train is not None
    texts = [text for pair in config.data.train.open("data.train") for text in pair[:2]]
    tokenizer = Characters().train(texts, config.model.vocab_size)
    tokenizers = Tokenizers(tokenizer, tokenizer)
    write_run(RunFolder(tmp_path / "teacher"), config, 0, normal_params(config, 0), "a test", tokenizers=tokenizers)
    return tmp_path / "teacher"


@pytest.mark.slow
def test_a_student_trains_on_what_teach_wrote(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Oracle: the loss with the weight 1 is that of the teacher's probabilities alone; the words' has no share in it."""
    file = tmp_path / "new" / "teacher.npz"
    config = with_train(tiniest_config(), steps=1, log_every=1, eval_every=1, checkpoint_every=1, text_metrics=())
    data = dataclasses.replace(config.data, tokenizer=FromRun(path=str(teacher)))

    def student(weight: float) -> Path:
        objective = Distillation(predictions=str(file), weight=weight, label_smoothing=0.0)
        changed = dataclasses.replace(config, data=data, objective=objective)
        return write_config_file(tmp_path / f"student_{weight}.json", changed)

    main(["teach", str(student(1.0)), "--teacher", str(teacher), "--teacher", str(teacher), "--top", "3"])
    assert f"{file}: 200 pairs, 3 tokens for each of" in capsys.readouterr().err
    assert Predictions.read(str(file)).top == 3
    losses = {}
    for weight in (0.25, 0.5, 1.0):
        main(["train", str(student(weight)), "--workdir", str(tmp_path / f"run_{weight}")])
        losses[weight] = rows(tmp_path / f"run_{weight}")[0]["loss"]
    words = 2 * losses[0.5] - losses[1.0]  # the loss is linear in the weight
    assert losses[0.25] == pytest.approx(0.75 * words + 0.25 * losses[1.0], rel=1e-5)
    assert abs(losses[1.0] - words) > 0.01


def test_mistakes(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        main(["teach", str(write_config_file(tmp_path / "tiny.json", tiniest_config())), "--teacher", str(teacher)])
    assert (
        "objective.kind is 'seq2seq', which names no file to write: set the objective to Distillation("
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("place", ["a folder", "below a file"])
def test_a_file_that_cannot_be_written_is_known_before_it_predicts(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """Oracle: the teacher does not exist, and the message is of the file all the same."""
    (tmp_path / "file").touch()
    predictions = tmp_path if place == "a folder" else tmp_path / "file" / "teacher.npz"
    config = dataclasses.replace(tiniest_config(), objective=Distillation(predictions=str(predictions)))
    with pytest.raises(SystemExit):
        main(["teach", str(write_config_file(tmp_path / "tiny.json", config)), "--teacher", str(tmp_path / "absent")])
    why = "it is a folder" if place == "a folder" else f"{tmp_path / 'file'} is no folder"
    assert capsys.readouterr().err.rstrip().endswith(why)
