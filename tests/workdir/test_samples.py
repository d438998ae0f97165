"""Oracles: files and names by hand."""

from pathlib import Path

from flaxformer_lite.workdir.samples import Sample, evaluation_files, evaluation_name, format_samples, read_samples


def test_samples_are_read_as_they_are_written(tmp_path: Path):
    """A line break becomes a sign, and an empty text stays."""
    text = format_samples([Sample("a b", "c", "d"), Sample("1\r\n2", "", "x\n\ny")])
    expected = ["source:     a b", "reference:  c", "hypothesis: d", ""]
    assert text.split("\n") == [*expected, "source:     1⏎2", "reference:  ", "hypothesis: x⏎y", ""]
    (tmp_path / "file.txt").write_text(text, encoding="utf-8")
    assert read_samples(tmp_path / "file.txt") == [Sample("a b", "c", "d"), Sample("1⏎2", "", "x⏎y")]


def test_files_of_evaluations_by_step(tmp_path: Path):
    """Other files in the folder are none, and a step beyond the name's width comes last."""
    assert evaluation_name(7) == "eval-step-00000007"
    for name in ("eval-step-00000020", "eval-step-00000003", "eval-step-123456789", "eval-step-last", "test"):
        (tmp_path / f"{name}.txt").touch()
    found = evaluation_files(tmp_path)
    assert list(found) == [3, 20, 123456789]
    assert found[3] == tmp_path / "eval-step-00000003.txt"
    assert evaluation_files(tmp_path / "none") == {}
