"""Oracle: what `plan --devices` prints, worked out by hand."""

import dataclasses
import re
from pathlib import Path

from tests.support.commands import Command
from tests.support.experiments import tiny_config, write_config_file


def test_plan_shows_how_a_config_is_cut(tmp_path: Path, command: Command):
    """Oracle: by hand. 32 x 16 numbers of 4 bytes over fsdp 2 and tensor 2 are 512 bytes on each of any number of devices."""
    sizes = {"vocab_size": 152, "d_model": 16, "num_heads": 4, "d_ff": 32}
    sizes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = dataclasses.replace(tiny_config().model, **sizes)
    config = write_config_file(tmp_path / "tiny.json", dataclasses.replace(tiny_config(), model=model))
    words = ["plan", config, "--devices", "64", "--train.mesh.fsdp", "2", "--train.mesh.tensor"]
    printed = command(*words, "2").out
    (row,) = re.findall(r"^params/decoder/layers/feed_forward/down/kernel .*", printed, re.MULTILINE)
    assert row.split()[1:] == ["(1,", "32,", "16)", "-,", "tensor,", "fsdp", "(1,", "16,", "8)", "512"]
    assert "mesh: data 16, fsdp 2, tensor 2" in printed and "activations B T D" in printed
    assert "do not make up 64 devices" in command.mistake(*words, "3", "--train.mesh.data", "1")
