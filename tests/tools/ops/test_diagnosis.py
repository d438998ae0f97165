"""Fake machines as records of facts, with the problem that each must have, and the command that mends it."""

import dataclasses

import jax
import pytest

from flaxformer_lite.base import hardware
from flaxformer_lite.base.hardware import NvidiaGPU
from flaxformer_lite.tools.ops.diagnosis import Device, Facts, collect, diagnosis, problems

VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "flax": "0.12.8"}
CPU, GPU, TPU = Device("cpu", "cpu", None), Device("gpu", "Tesla T4", 12 * 2**30), Device("tpu", "TPU v5 lite", None)
LAPTOP = Facts(python="3.11.7", system="Linux x86_64, 2 CPUs", versions=VERSIONS, devices=(CPU,))
T4, OLD_DRIVER = NvidiaGPU("Tesla T4", "7.5", "580.65"), NvidiaGPU("Tesla T4", "7.5", "550.54")


def machine(**changes) -> Facts:
    """Returns the laptop with other facts; `versions` are added to its own."""
    return dataclasses.replace(LAPTOP, **{**changes, "versions": VERSIONS | changes.get("versions", {})})


CUDA12, CUDA13 = {"jax-cuda12-plugin": "0.10.2"}, {"jax-cuda13-plugin": "0.10.2"}
MACHINES = {
    "no plug-in": (machine(gpus=(T4,)), "plug-in for it is not installed", 'pip install "jax[cuda13]==0.10.2"'),
    "old driver": (machine(gpus=(OLD_DRIVER,)), "Tesla T4, and JAX does not", 'pip install "jax[cuda12]==0.10.2"'),
    "platforms": (
        machine(gpus=(T4,), versions=CUDA13, environment={"JAX_PLATFORMS": "cpu"}),
        "JAX_PLATFORMS is cpu",
        "unset JAX_PLATFORMS",
    ),
    "hidden": (
        machine(gpus=(T4,), versions=CUDA13, environment={"CUDA_VISIBLE_DEVICES": ""}),
        "CUDA_VISIBLE_DEVICES is ''",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "CUDA 13 on an old driver": (
        machine(gpus=(OLD_DRIVER,), versions=CUDA13),
        "driver 550.54 is older than CUDA 13, which needs 580",
        'pip uninstall jax-cuda13-plugin; pip install "jax[cuda12]==0.10.2"',
    ),
    "JAX's own reason": (
        machine(gpus=(T4,), versions=CUDA12, errors={"gpu": "CUDA_ERROR_SYSTEM_NOT_READY"}),
        "because CUDA_ERROR_SYSTEM_NOT_READY",
        "pip install",
    ),
    "a plug-in for another jaxlib": (
        machine(versions={"jax-cuda12-plugin": "0.7.2"}),
        "jax-cuda12-plugin 0.7.2 is not for jaxlib 0.10.2",
        'pip install "jax[cuda12]==0.10.2"',
    ),
    "another jaxlib": (
        machine(versions={"jaxlib": "0.9.0"}),
        "jax 0.10.2 and jaxlib 0.9.0",
        'pip install "jaxlib==0.10.2"',
    ),
    "no import": (
        machine(devices=(), errors={"import": "no such symbol"}),
        "no such symbol",
        "pip install --force-reinstall",
    ),
    "a platform that is not there": (
        machine(devices=(), environment={"JAX_PLATFORMS": "rocm"}, errors={"devices": "known backends: ['cpu']"}),
        "JAX cannot start its devices: known backends: ['cpu']",
        "unset JAX_PLATFORMS",
    ),
    "a plug-in that fails": (
        machine(devices=(), errors={"devices": "it is broken"}),
        "JAX cannot start its devices: it is broken",
        "export JAX_PLATFORMS=cpu",
    ),
    "a GPU that is asked for without a plug-in": (
        machine(gpus=(T4,), devices=(), environment={"JAX_PLATFORMS": "cuda"}, errors={"devices": "unknown"}),
        "plug-in for it is not installed",
        'pip install "jax[cuda13]==0.10.2"',
    ),
    "no libtpu": (
        machine(tpu=True),
        "there is a TPU, and JAX does not use it, because libtpu",
        'pip install "jax[tpu]==',
    ),
    "a busy TPU": (
        machine(tpu=True, versions={"libtpu": "0.0.42"}, errors={"tpu": "The TPU is already in use by process 7"}),
        "already in use by process 7",
        "end the other process",
    ),
    "a busy TPU that is asked for": (
        machine(
            tpu=True,
            devices=(),
            versions={"libtpu": "0.0.42"},
            environment={"JAX_PLATFORMS": "tpu"},
            errors={"devices": "The TPU is already in use by process 7"},
        ),
        "already in use by process 7",
        "end the other process",
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_wrong_and_the_command_that_mends_it(name: str):
    facts, what, remedy = MACHINES[name]
    (problem,) = problems(facts)
    assert what in problem.what and remedy in problem.remedy
    lines = diagnosis(facts)
    assert f"problem: {problem.what}" in lines and f"  mend it: {problem.remedy}" in lines and lines[-1] == "1 problem"


def test_a_gpu_with_a_plug_in_for_another_jaxlib_is_two_problems_with_one_remedy():
    facts = machine(gpus=(OLD_DRIVER,), versions={"jax-cuda12-plugin": "0.7.2"})
    first, second = problems(facts)
    assert "is not for jaxlib" in first.what and "Tesla T4, and JAX does not use it" in second.what
    assert first.remedy == second.remedy == 'pip install "jax[cuda12]==0.10.2"'


def test_a_machine_whose_devices_are_used_has_no_problem():
    for facts in (
        LAPTOP,
        machine(gpus=(T4,), devices=(GPU,), versions=CUDA12),
        machine(tpu=True, devices=(TPU,), versions={"libtpu": "0.0.42"}),
    ):
        assert list(problems(facts)) == [] and diagnosis(facts)[-1] == "nothing is wrong"


@pytest.mark.parametrize(("platforms", "words"), [("rocm", "it is none of: cpu"), ("cuda", "shows no NVIDIA GPU")])
def test_devices_that_cannot_be_started_are_a_fact(platforms: str, words: str, monkeypatch: pytest.MonkeyPatch):
    """In the words of JAX, whose own error has none for cuda."""

    def failing() -> None:
        raise AssertionError if platforms == "cuda" else RuntimeError("it is none of: cpu")

    monkeypatch.setattr(jax, "devices", failing)
    monkeypatch.setattr(hardware, "has_nvidia_device", lambda: False)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    facts = collect()
    assert words in facts.errors["devices"] and facts.devices == ()


def test_the_report_shows_devices_and_notes():
    facts = machine(gpus=(T4,), devices=(GPU,), versions=CUDA12)
    lines = [" ".join(line.split()) for line in diagnosis(facts)]
    assert "JAX uses gpu (Tesla T4, 12.0 GiB)" in lines and "jax 0.10.2" in lines and lines[-1] == "nothing is wrong"
    assert "hardware Tesla T4, compute capability 7.5, driver 580.65" in lines
    assert not any("bfloat16 (--model" in line for line in lines)
    assert any("bfloat16 (--model.matmul-dtype" in line for line in diagnosis(machine(bfloat16=True)))
    (note,) = (line for line in lines if line.startswith("note: "))
    assert "Tesla T4 has compute capability 7.5" in note and "--model.dtype float32" in note


def test_a_cpu_without_its_fastest_engine_is_told_what_that_brings():
    (note,) = (line for line in diagnosis(LAPTOP) if line.startswith("note: "))
    assert "CTranslate2" in note and note.endswith('pip install "flaxformer-lite[ctranslate2]"')
    facts = machine(versions={"ctranslate2": "4.8.5"}, exports=3 * 2**29)
    lines = [" ".join(line.split()) for line in diagnosis(facts)]
    assert not [line for line in lines if line.startswith("note: ")]
    (exports,) = (line for line in lines if line.startswith("exports "))
    assert exports.startswith("exports 1.5 GiB in ") and exports.endswith(", of 16 at most")
