"""Oracle: two machines written down as facts, of which one has a GPU that JAX does not use."""

import dataclasses

import pytest

from flaxformer_lite.base.hardware import NvidiaGPU
from flaxformer_lite.cli.main import main
from flaxformer_lite.tools.ops import diagnosis
from flaxformer_lite.tools.ops.diagnosis import Device, Facts

LAPTOP = Facts(
    python="3.11.7",
    system="Linux x86_64, 2 CPUs",
    versions={"jax": "0.10.2", "jaxlib": "0.10.2"},
    devices=(Device("cpu", "cpu", None),),
)


def test_doctor_ends_with_status_1_and_the_remedy_where_something_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with_gpu = dataclasses.replace(LAPTOP, gpus=(NvidiaGPU("Tesla T4", "7.5", "580.65"),))
    monkeypatch.setattr(diagnosis, "collect", lambda: with_gpu)
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code == 1
    assert 'mend it: pip install "jax[cuda13]==0.10.2"' in capsys.readouterr().out


def test_doctor_ends_well_where_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(diagnosis, "collect", lambda: LAPTOP)
    main(["doctor"])
    assert capsys.readouterr().out.splitlines()[-1] == "nothing is wrong"
