"""The commands as they are typed: what goes to stdout, what to stderr, the exit status, and every mistake in one line."""

import gzip
import hashlib
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from experiments import tiny_config, use_one_device, with_train

import flaxformer_lite
from flaxformer_lite.__main__ import main
from flaxformer_lite.trainer import train

CONFIG = with_train(tiny_config(), steps=6, eval_every=3, checkpoint_every=3)
LINES = ["20 nov 2026", "", "Freitag, 20. November 2026", "  ", "2026年11月20日"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        train(CONFIG, path)
    return path


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Types a command and gives (exit status, stdout, stderr)."""

    def typed(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["flaxformer-lite", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        status = 0
        try:
            main()
        except SystemExit as exit:
            status = int(exit.code or 0)
        return status, *capsys.readouterr()

    return typed


def text(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def test_translate_answers_every_line_in_order(folder: Path, command, tmp_path: Path):
    """Law: one line out for each line in, an empty one for an empty one; a pipe, files and Python agree."""
    status, out, _ = command("translate", folder, stdin=text(LINES))
    answers = out.split("\n")[:-1]
    assert status == 0
    assert len(answers) == len(LINES)
    assert [not answer for answer in answers] == [not line.strip() for line in LINES]
    (tmp_path / "a.txt").write_bytes(text(LINES[:2]))
    (tmp_path / "b.gz").write_bytes(gzip.compress(text(LINES[2:])))
    assert command("translate", folder, tmp_path / "a.txt", tmp_path / "b.gz")[1] == out
    assert flaxformer_lite.load(folder).translate(LINES) == answers
    assert answers[2] == flaxformer_lite.load(folder).translate(LINES[2:3])[0]


def test_a_last_line_without_its_end_counts(folder: Path, command):
    assert (
        command("translate", folder, stdin=b"20 nov 2026")[1]
        == command("translate", folder, stdin=b"20 nov 2026\r\n")[1]
    )


def test_n_best_has_index_text_and_score(folder: Path, command):
    status, out, _ = command("translate", folder, "--beam", 3, "--n-best", 2, stdin=text(LINES[:3]))
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert status == 0
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    scores = [float(row[2]) for row in rows]
    assert scores[0] >= scores[1]
    assert rows[2][1] == ""


def test_scores_follow_a_tab(folder: Path, command):
    plain = command("translate", folder, stdin=text(LINES[:1]))[1].rstrip("\n")
    answer, score = command("translate", folder, "--scores", stdin=text(LINES[:1]))[1].rstrip("\n").split("\t")
    assert answer == plain
    assert float(score) < 0


def test_a_line_that_is_too_long_is_cut_with_a_warning_and_answered(folder: Path, command):
    status, out, err = command("translate", folder, stdin=text(["20 nov 2026", "x" * 50]))
    assert status == 0
    assert len(out.splitlines()) == 2
    assert "warning: line 2: the source has 50 tokens and was cut to 39 (data.max_source_length)" in err


def test_evaluate_prints_json_with_signatures(folder: Path, command, tmp_path: Path):
    """Oracle: sacreBLEU itself on the kept hypotheses."""
    import sacrebleu

    status, out, _ = command("evaluate", folder)
    report = json.loads(out)
    assert status == 0
    assert report["split"] == "eval"
    assert report["sentences"] == 20
    hypotheses = (folder / "hypotheses" / "eval.txt").read_text().split("\n")[:-1]
    references = [pair.target for pair in CONFIG.data.eval.open()]
    assert report["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert report["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    assert "tok:13a" in report["bleu_signature"]
    assert "case:lc" in report["bleu_lowercase_signature"]
    assert report["reference_words"] == 20 * 5  # 13a takes 2026-11-20 apart
    assert report["perplexity"] == pytest.approx(np.exp(report["loss"]))
    eval_row = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-1]
    assert report["loss"] == pytest.approx(eval_row["loss"], rel=1e-5)


def test_evaluate_takes_files(folder: Path, command, tmp_path: Path):
    pairs = list(CONFIG.data.eval.open())[:3]
    (tmp_path / "source").write_bytes(text([pair.source for pair in pairs]))
    (tmp_path / "target").write_bytes(text([pair.target for pair in pairs]))
    status, out, _ = command("evaluate", folder, "--source", tmp_path / "source", "--target", tmp_path / "target")
    assert status == 0
    assert json.loads(out)["sentences"] == 3


def test_the_digest_is_what_its_text_says(folder: Path, command):
    """Oracle: recomputed here from the arrays by the documented format."""
    report = json.loads(command("inspect", folder, "--json")[1])
    params = flaxformer_lite.load(folder).params
    leaves: dict[str, np.ndarray] = {}

    def walk(node, path: str) -> None:
        if isinstance(node, dict):
            for name, child in node.items():
                walk(child, f"{path}/{name}" if path else name)
        else:
            leaves[path] = np.asarray(node)

    walk(params, "")
    digest = hashlib.sha256()
    for path in sorted(leaves):
        array = leaves[path]
        digest.update(f"{path} {array.dtype.name} {','.join(map(str, array.shape))}\n".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    assert report["sha256"] == digest.hexdigest()
    assert report["total"] == sum(array.size for array in leaves.values())
    assert [c["step"] for c in report["checkpoints"]] == [3, 6]
    assert sum(c["best"] for c in report["checkpoints"]) == 1


def test_inspect_shows_any_step_and_weights(folder: Path, command):
    digests = {}
    for arguments in (
        ["--step", 3],
        ["--step", 6],
        ["--weights", "last"],
        ["--weights", "ema"],
        ["--weights", "average:2"],
    ):
        status, out, _ = command("inspect", folder, "--json", *arguments)
        assert status == 0
        digests[tuple(arguments)] = json.loads(out)["sha256"]
    assert digests["--step", 6] == digests["--weights", "last"]
    assert len(set(digests.values())) == 4
    status, out, _ = command("inspect", folder)
    assert "encoder/layers/attention/query/kernel" in out
    assert "SHA-256" in out


def test_average_makes_a_run_folder(folder: Path, command, tmp_path: Path):
    """Oracle: the mean of the two checkpoints' parameters, in NumPy."""
    assert command("average", folder, tmp_path / "mean", "--last", 2)[0] == 0
    found = flaxformer_lite.load(tmp_path / "mean").params
    import jax

    for mean, a, b in zip(
        *(jax.tree.leaves(p) for p in (found, *(flaxformer_lite.load(folder, step=s).params for s in (3, 6)))),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(mean), (np.asarray(a) + np.asarray(b)) / 2, rtol=1e-6, atol=1e-7)
    assert command("translate", tmp_path / "mean", stdin=text(LINES[:1]))[0] == 0
    assert command("average", folder, tmp_path / "mean")[0] == 2


def test_a_damaged_checkpoint_is_passed_over_with_a_word(folder: Path, command, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for file in (copy / "checkpoints" / "6" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    status, out, err = command("inspect", copy, "--json")
    assert status == 0
    assert json.loads(out)["step"] == 3
    assert "checkpoint 6" in err
    assert "using checkpoint 3" in err
    shutil.rmtree(copy / "checkpoints")
    status, out, err = command("inspect", copy)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tranlsate", "{run}"], ["no command tranlsate", "perhaps you meant translate"]),
        (["translate", "{run}/nowhere"], ["does not exist", "train.py"]),
        (["translate", "{tmp}"], ["holds no run", "config.json"]),
        (["translate", "{run}", "{tmp}/no-file"], ["{tmp}/no-file"]),
        (["translate", "{run}", "--beam", "0"], ["decode.beam_size is 0"]),
        (["translate", "{run}", "--n-best", "5"], ["decode.num_hypotheses", "decode.beam_size"]),
        (["translate", "{run}", "--weights", "latest"], ["weights is 'latest'", "average:N"]),
        (["translate", "{run}", "--weights", "average:9"], ["average:9", "train.keep_latest"]),
        (["evaluate", "{run}", "--split", "test"], ["no data.test", "--source"]),
        (["evaluate", "{run}", "--source", "{tmp}/a"], ["--target"]),
        (["evaluate", "{run}", "--source", "{tmp}/three", "--target", "{tmp}/two"], ["3", "2"]),
        (["inspect", "{run}", "--step", "4"], ["4", "3, 6"]),
        (["average", "{run}", "{tmp}/mean", "--last", "3"], ["3"]),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line_and_status_2(
    folder: Path, command, tmp_path: Path, arguments: list[str], words: list[str]
):
    (tmp_path / "three").write_text("a\nb\nc\n")
    (tmp_path / "two").write_text("a\nb\n")
    fill = lambda text: text.format(run=folder, tmp=tmp_path)  # noqa: E731
    status, out, err = command(*map(fill, arguments))
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    for word in words:
        assert fill(word) in line


def test_stdin_that_is_not_utf8_names_its_line(folder: Path, command):
    status, _, err = command("translate", folder, stdin=b"20 nov 2026\n\xff\xfe\n")
    assert status == 2
    assert "stdin, line 2" in err


def test_attention_has_a_row_of_weights_for_every_piece(folder: Path):
    """Law: softmax rows sum to 1; the decoder sees no later piece."""
    run = flaxformer_lite.load(folder)
    weights = run.attention("20 nov 2026", "2026-11-20")
    s, t = len(weights.source_pieces), len(weights.target_pieces)
    assert weights.cross.shape == (2, 3, t, s)
    assert weights.encoder.shape == (2, 3, s, s)
    for each in (weights.encoder, weights.decoder, weights.cross):
        np.testing.assert_allclose(each.sum(-1), 1, rtol=1e-5)
    assert not np.triu(weights.decoder, 1).any()
