"""Oracle: two machines written down as facts, of which one has a GPU that JAX does not use."""

import dataclasses

from flaxformer_lite.base.hardware import NvidiaGPU
from flaxformer_lite.tools.ops import diagnosis
from flaxformer_lite.tools.ops.diagnosis import Device, Facts
from tests.support.commands import Command

LAPTOP = Facts(
    python="3.11.7",
    system="Linux x86_64, 2 CPUs",
    versions={"jax": "0.10.2", "jaxlib": "0.10.2"},
    devices=(Device("cpu", "cpu", None),),
)


def test_doctor_ends_with_status_1_and_the_remedy_where_something_is_wrong(command: Command, monkeypatch):
    with_gpu = dataclasses.replace(LAPTOP, gpus=(NvidiaGPU("Tesla T4", "7.5", "580.65"),))
    monkeypatch.setattr(diagnosis, "collect", lambda: with_gpu)
    status, said = command.ended("doctor")
    assert status == 1 and 'mend it: pip install "jax[cuda13]==0.10.2"' in said.out
    monkeypatch.setattr(diagnosis, "collect", lambda: LAPTOP)
    assert command("doctor").lines[-1] == "nothing is wrong"
