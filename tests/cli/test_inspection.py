"""Oracle: what `inspect --sharding` prints, worked out by hand."""

import contextlib
import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.cli import inspection
from flaxformer_lite.cli.main import main
from flaxformer_lite.data import ParallelText
from flaxformer_lite.data.store import TokenStore
from flaxformer_lite.text import Tokenizers
from flaxformer_lite.text.characters import CharacterTokenizer
from tests.support.experiments import tiny_config, write_config_file
from tests.support.files import file
from tests.support.paths import FIXTURES

BIG_ENOUGH = dataclasses.replace(
    tiny_config().model, vocab_size=152, d_model=16, num_heads=4, d_ff=32, num_encoder_layers=1, num_decoder_layers=1
)


def test_inspect_shows_how_a_config_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: by hand. 32 x 16 numbers of 4 bytes over fsdp 2 and tensor 2 are 512 bytes on each of any number of devices."""
    config = write_config_file(tmp_path / "tiny.json", dataclasses.replace(tiny_config(), model=BIG_ENOUGH))
    command = ["flaxformer-lite", "inspect", str(config), "--sharding", "--devices", "64", "--mesh", "fsdp=2,tensor=2"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    printed = capsys.readouterr().out
    (row,) = re.findall(r"^params/decoder/layers/feed_forward/down/kernel .*", printed, re.MULTILINE)
    assert row.split()[1:] == ["(1,", "32,", "16)", "-,", "tensor,", "fsdp", "(1,", "16,", "8)", "512"]
    assert "mesh: data 16, fsdp 2, tensor 2" in printed and "activations B T D" in printed
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    main()
    report = json.loads(capsys.readouterr().out)
    parameters = [array for array in report["arrays"] if array["path"].startswith("params/")]
    assert report["bytes"]["parameters"][0] == sum(array["bytes_on_device"] for array in parameters)
    monkeypatch.setattr(sys, "argv", [*command[:4], "--mesh", "data=16,fsdp=2,tensor=2"])
    main()
    assert capsys.readouterr().out == printed, "as many devices as the mesh says"
    monkeypatch.setattr(sys, "argv", [*command[:-1], "tensor=3,data=1"])
    with pytest.raises(SystemExit):
        main()
    assert "do not make up 64 devices" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [None, "checkpoint", "metrics", "tokenizer", "tokens"])
def test_verify_names_the_damaged_part(damage: str | None, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Oracle: one byte of a run that an older release wrote, by hand."""
    run = Path(shutil.copytree(FIXTURES / "before_rebuild/run", tmp_path / "run"))
    files = {
        "checkpoint": next(path for path in sorted(run.rglob("d/*")) if path.is_file()),
        "metrics": run / "metrics.jsonl",
        "tokenizer": run / "tokenizer.characters.json",
    }
    source = ParallelText(source=file(tmp_path, "x.a", "ab\nb\n"), target=file(tmp_path, "x.b", "b\na\n"))
    tokenizer = CharacterTokenizer("ab")
    store = TokenStore.of(run / ".tokens", source, Tokenizers(tokenizer, tokenizer))
    store.build(Tokenizers(tokenizer, tokenizer), lambda *_: None)
    files["tokens"] = store.folder / "00000" / "ids.npy"
    if damage is not None:
        content = bytearray(files[damage].read_bytes())
        content[4] ^= 8
        files[damage].write_bytes(content)
    with contextlib.nullcontext() if damage is None else pytest.raises(SystemExit) as end:
        main(["inspect", str(run), "--verify"])
    out, err = capsys.readouterr()
    parts = {"checkpoint": "checkpoint 500", "metrics": "metrics.jsonl", "tokenizer": "tokenizers"}
    parts["tokens"] = str(store.folder)
    for name, part in parts.items():
        assert (f"\n{part}: as it was written" in out) == (name != damage)
    if damage is not None:
        assert end.value.code == 1 and f"1 of 5 parts are damaged or missing: {parts[damage]}" in err
    with contextlib.nullcontext() if damage != "tokens" else pytest.raises(SystemExit):
        main(["inspect", str(run / ".tokens"), "--verify"])
    assert capsys.readouterr().out.startswith(f"{store.folder}: ")


def test_a_run_that_has_just_begun_is_shown_without_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: by hand. The step is that of metrics.jsonl; only weights that were chosen are missing."""
    monkeypatch.setattr(inspection, "abstract_params", lambda config: {"embedding": np.zeros((13, 7), np.float32)})
    write_config_file(tmp_path / "config.json", tiny_config())
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    main(["inspect", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "weights: no checkpoint yet; the last row of metrics.jsonl is step 1 of " in printed
    assert re.search(r"^embedding +\(13, 7\) +float32 +91$", printed, re.MULTILINE) and "SHA-256" not in printed
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path), "--weights", "best"])
