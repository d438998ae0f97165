"""Oracle: damage by hand."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.files.data.store import TokenStore
from flaxformer_lite.tools.ops import inspection
from tests.support.commands import Command
from tests.support.experiments import tiny_config, write_config_file
from tests.support.files import file
from tests.support.paths import FIXTURES


@pytest.mark.parametrize("damage", [None, "checkpoint", "metrics", "tokenizer", "tokens"])
def test_verify_names_the_damaged_part(damage: str | None, tmp_path: Path, command: Command):
    """Oracle: one byte of a run, by hand."""
    run = Path(shutil.copytree(FIXTURES / "runs" / "format_1", tmp_path / "run"))
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
    status, (out, err) = command.ended("inspect", run, "--verify")
    parts = {"checkpoint": "checkpoint 2", "metrics": "metrics.jsonl", "tokenizer": "tokenizers"}
    parts["tokens"] = str(store.folder)
    for name, part in parts.items():
        assert (f"\n{part}: as it was written" in out) == (name != damage)
    damaged = {None: [], "tokenizer": ["config.json", "tokenizers"]}.get(
        damage, [parts.get(damage)]
    )  # a seal names it too
    assert status == bool(damaged)
    assert not damaged or f"{len(damaged)} of 5 parts are damaged or missing: {' and '.join(damaged)}" in err
    status, said = command.ended("inspect", run / ".tokens", "--verify")
    assert status == (damage == "tokens") and said.out.startswith(f"{store.folder}: ")


@pytest.mark.slow
def test_a_run_that_has_just_begun_is_shown_without_weights(tmp_path: Path, command: Command, monkeypatch):
    """Oracle: by hand. The step is that of metrics.jsonl; only weights that were chosen are missing."""
    monkeypatch.setattr(
        inspection, "abstract_saved_params", lambda config: {"embedding": np.zeros((13, 7), np.float32)}
    )
    write_config_file(tmp_path / "config.json", tiny_config())
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "train", "loss": 1.0}\n')
    printed = command("inspect", tmp_path).out
    assert "weights: no checkpoint yet; the last row of metrics.jsonl is step 1 of " in printed
    assert re.search(r"^embedding +\(13, 7\) +float32 +91$", printed, re.MULTILINE) and "SHA-256" not in printed
    command.mistake("inspect", tmp_path, "--weights", "best")
