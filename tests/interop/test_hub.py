"""Oracle: a hub on this machine that speaks the protocol. What is imported by name equals the folder it was made of."""

import contextlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chex
import pytest
from huggingface_hub import constants
from safetensors.numpy import load_file

from flaxformer_lite import export_hf, import_hf, load
from flaxformer_lite.base.model_names import HubName
from flaxformer_lite.interop.hf.folder import INDEX, WEIGHTS
from flaxformer_lite.interop.hub import download, push
from flaxformer_lite.interop.weight_files import read_file
from tests.support.commands import Command
from tests.support.experiments import use_one_device
from tests.support.hf_folders import DATA
from tests.support.hub_server import TOKEN, HubServer, sibling
from tests.support.paths import FIXTURES, ROOT
from tests.support.torch_files import write_torch

MINILM = DATA / "minilm/hub_layout"
NAME = "org/mini-lm"


def point_at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Sets the library's endpoint, which it reads from HF_ENDPOINT when it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    use_one_device(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its storage is no part of this server
    with HubServer() as server:
        point_at(monkeypatch, server.url)
        yield server


def sharded() -> Path:
    return DATA / "llama/mqa_sharded"


# Download -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_by_name_equals_its_folder(hub: HubServer, tmp_path: Path) -> None:
    """As the user types it, in processes of their own: HF_ENDPOINT is read when the library is imported."""
    theirs = shutil.copytree(MINILM, tmp_path / "theirs")
    (theirs / "pytorch_model.bin").write_bytes(b"a pickle")
    (theirs / "onnx").mkdir()
    shutil.copy(MINILM / WEIGHTS, theirs / "onnx" / WEIGHTS)
    sha = hub.add(NAME, theirs)
    names = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    names |= {"HF_HUB_ETAG_TIMEOUT": "120", "HF_HUB_DOWNLOAD_TIMEOUT": "120"}  # the machine may be busy
    names |= {"HF_HUB_OFFLINE": "0"}  # makers of fixtures, which other tests import, set it to 1
    words = [sys.executable, "-m", "flaxformer_lite", "import", "hf", NAME, "run"]
    done = subprocess.run(words, env=os.environ | names, cwd=tmp_path, capture_output=True, text=True)
    size = (MINILM / WEIGHTS).stat().st_size / 1e6
    first, *rest = done.stderr.splitlines()
    assert done.returncode == 0 and first == f"downloading {NAME} (commit {sha[:12]}): {WEIGHTS}, {size:,.1f} MB"
    assert len(rest) == 1 and "parameters in" in rest[0]  # no word of the library
    assert hub.sent.keys() == {str(path.relative_to(MINILM)) for path in MINILM.rglob("*.*")} - {"io.npz"}
    assert json.loads((tmp_path / "run/imported.json").read_text())["weights"] == f"hf://{NAME}@{sha}"


def test_an_import_by_name_is_exported_as_the_folder_was(hub: HubServer, tmp_path: Path, command: Command) -> None:
    hub.add(NAME, MINILM)
    command("import", "hf", NAME, "named")
    command("import", "hf", MINILM, "folder")
    for file in ("config.json", "tokenizer.hf.json", "huggingface/tokenizer_config.json"):
        named, folder = (
            (tmp_path / run / file).read_text().replace(f'"{run}"', '"run"') for run in ("named", "folder")
        )
        assert named == folder
    command("export", "hf", "named", "out")
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == (MINILM / WEIGHTS).read_bytes()
    assert f'base_model: "{NAME}"' in (tmp_path / "out/README.md").read_text()


def test_a_name_in_the_place_of_a_run_is_imported_once_a_commit(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cached"))
    models = tmp_path / "cached/flaxformer_lite/models"
    old = hub.add(NAME, MINILM)
    (tmp_path / "in.txt").write_text("a text\n")
    first = command("embed", NAME, "in.txt")
    assert first.out and any(line.startswith(f"importing {NAME}, once for this version") for line in first.notes)
    sent = dict(hub.sent)
    assert command("embed", f"hf://{NAME}", "in.txt") == (first.out, "") and hub.sent == sent
    assert load(NAME).config == load(f"{NAME}@{old}").config
    (changed := shutil.copytree(MINILM, tmp_path / "changed")).joinpath("README.md").write_text("new")
    new = hub.add(NAME, changed)
    load(NAME)
    places = {path.name for path in models.iterdir() if path.is_dir()}
    assert places == {f"org--mini-lm-{sha[:12]}" for sha in (old, new)}
    point_at(monkeypatch, "http://127.0.0.1:9")
    said = command("embed", NAME, "in.txt")
    assert said.out == first.out and len(said.notes) == 1 and "cannot be reached" in said.notes[0]
    with pytest.raises(ValueError, match=r"org/none is not in the cache"):
        load("org/none")


def test_a_name_that_the_hub_does_not_have_is_one_message(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cached"))
    with pytest.raises(ValueError, match=r"^org/none is neither a folder"):
        load("org/none")


def test_a_revision_and_shards(hub: HubServer) -> None:
    old = hub.add(NAME, sharded())
    hub.repos[NAME].revisions["v1"] = old
    new = hub.add(NAME, MINILM)
    folder, source = download(HubName(NAME, "v1"))
    assert source == f"hf://{NAME}@{old}" and not (folder / WEIGHTS).exists()
    files = json.loads((folder / INDEX).read_text())["weight_map"].values()
    assert len(set(files)) == 2 and all(
        (folder / file).read_bytes() == (sharded() / file).read_bytes() for file in files
    )
    assert download(HubName(NAME, None))[1] == f"hf://{NAME}@{new}"
    assert download(HubName(NAME, old))[0] == folder


@pytest.mark.parametrize("kind", ["whole", "sharded", "dense", "adapters"])
def test_weights_of_torch_save_are_fetched_where_there_are_no_others(kind: str, hub: HubServer, tmp_path: Path) -> None:
    """Oracle: the folder. What a trainer left beside them is not fetched; from the cache it is the same."""
    places = {"dense": DATA / "embeddinggemma/two_dense", "adapters": FIXTURES / "peft/llama_plain"}
    folder = Path(shutil.copytree(places.get(kind, DATA / "bert/model"), tmp_path / "theirs"))
    wanted = {}
    names = {WEIGHTS: "pytorch_model.bin", "adapter_model.safetensors": "adapter_model.bin"}
    if kind == "sharded":
        names[WEIGHTS] = "pytorch_model-00001-of-00001.bin"
        index = {"weight_map": dict.fromkeys(load_file(folder / WEIGHTS), names[WEIGHTS])}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for file in sorted(folder.rglob("*.safetensors"))[: 1 if kind == "dense" else None]:
        new = file.with_name(names[file.name])
        wanted[str(new.relative_to(folder))] = tensors = load_file(file)
        write_torch(new, tensors)
        file.unlink()
    for file in ("optimizer.bin", "training_args.bin", "scheduler.pt", "rng_state.pth"):
        (folder / file).write_bytes(b"never sent")
    hub.add(NAME, folder)
    found, _ = download(HubName(NAME, None))
    hub.refuses = 503
    assert download(HubName(NAME, None))[0] == found
    kept = {str(file.relative_to(folder)) for file in folder.rglob("*.safetensors")}
    assert {name for name in hub.sent if Path(name).suffix in (".bin", ".pt", ".pth", ".safetensors")} == {
        *wanted,
        *kept,
    }
    for file, tensors in wanted.items():
        chex.assert_trees_all_equal(read_file(found / file), tensors)


def test_a_broken_download_continues_where_it_broke(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    hub.add(NAME, MINILM)
    size, chunk = (MINILM / WEIGHTS).stat().st_size, 4096
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", chunk)  # of 10 MiB, which the library writes at a time
    hub.breaks[WEIGHTS] = 2 * chunk + 11
    # From version 2 on, the library continues by itself; before, the next command continues.
    with contextlib.suppress(ValueError):
        download(HubName(NAME, None))
    folder, _ = download(HubName(NAME, None))
    assert (folder / WEIGHTS).read_bytes() == (MINILM / WEIGHTS).read_bytes()
    assert hub.sent[WEIGHTS] == size + 11
    assert hub.requests.count(f"GET /{NAME}/resolve/{folder.name}/{WEIGHTS}") == 2
    assert capsys.readouterr().err.startswith(f"downloading {NAME} (commit {folder.name[:12]}): {WEIGHTS}")
    assert download(HubName(NAME, None))[0] == folder and hub.sent[WEIGHTS] == size + 11 and not capsys.readouterr().err


def test_adapters_by_name_bring_their_base(hub: HubServer, tmp_path: Path) -> None:
    """Oracle: the same adapters and base as folders; then the cache, where the hub cannot answer."""
    base, folder = DATA / "llama/gqa_llama3", shutil.copytree(FIXTURES / "peft/llama_plain", tmp_path / "adapters")
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(base)}))
    expected = load(import_hf(folder, "by_folder"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": "org/base"}))
    sha = hub.add("org/base", base)
    hub.add("org/adapters", folder)
    for run in ("by_name", "from_the_cache"):
        found = load(import_hf("org/adapters", run))
        assert found.config.model == expected.config.model and found.config.model.lora is not None
        chex.assert_trees_all_equal(found.params, expected.params)
        hub.refuses = 503
    export_hf("by_name", "written", adapters=True)
    written = json.loads(Path("written/adapter_config.json").read_text())
    assert (written["base_model_name_or_path"], written["revision"]) == ("org/base", sha)  # as PEFT loads it


def test_without_network_the_cache_is_read(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    sha = hub.add(NAME, sharded())
    hub.add("org/other", MINILM)
    found = download(HubName(NAME, None))
    other, _ = download(HubName("org/other", None))
    (other / WEIGHTS).unlink()
    capsys.readouterr()
    for reason in ("answers 503", "cannot be reached", "HF_HUB_OFFLINE is set"):
        hub.refuses = 503
        if reason == "cannot be reached":
            point_at(monkeypatch, "http://127.0.0.1:9")
        if reason == "HF_HUB_OFFLINE is set":
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert download(HubName(NAME, None)) == found and download(HubName(NAME, sha)) == found
        warning = capsys.readouterr().err
        assert warning.startswith("warning: ") and reason in warning and warning.count("\n") == 2
        with pytest.raises(ValueError, match=f"{reason}.*, and org/never is not in the cache .*: connect"):
            download(HubName("org/never", None))
        with pytest.raises(ValueError, match=f"{reason}.*the copy of org/other in the cache lacks {WEIGHTS}: connect"):
            download(HubName("org/other", None))


def test_what_cannot_be_downloaded_is_one_line_with_the_remedy(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def refused(name: str) -> str:
        return command.mistake("import", "hf", name, "run")

    keras, mamba = shutil.copytree(MINILM, tmp_path / "keras"), shutil.copytree(MINILM, tmp_path / "mamba")
    (keras / WEIGHTS).rename(keras / "tf_model.h5")
    (mamba / "config.json").write_text('{"model_type": "mamba"}')
    hub.add("org/keras", keras)
    hub.add("org/mamba", mamba)
    hub.add("org/secret", MINILM, private=True)
    hub.add("org/gated", MINILM, gated=True)
    assert "org/nothing is neither a folder here nor a model on" in refused("org/nothing")
    assert "if it is private, log in with `hf auth login`, or set HF_TOKEN" in refused("org/secret")
    assert f"org/gated is gated: accept its conditions on {hub.url}/org/gated, then log in" in refused("org/gated")
    assert "org/gated has no revision v9: choose a branch" in refused("org/gated@v9")
    assert "org/keras has tf_model.h5, which is not read, and no model.safetensors" in refused("org/keras")
    assert "org/mamba: model_type 'mamba' is not a family" in refused("org/mamba") and not hub.sent[WEIGHTS]
    assert "bert-base does not exist: name a Hugging Face folder" in refused("bert-base")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    assert "does not accept your token: log in" in refused("org/gated")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "org/nothing is neither a folder here" in refused("org/nothing")
    assert download(HubName("org/secret", None)) and download(HubName("org/gated", None))
    assert not (tmp_path / "run").exists()


def refusal(name: str = NAME) -> str:
    """Returns the one line that a download is refused with."""
    with pytest.raises(ValueError, match=r".") as error:
        download(HubName(name, None))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_metric_comes_with_its_two_files(hub: HubServer) -> None:
    hub.add(NAME, FIXTURES / "metrics/comet_qe")
    folder = download(HubName(NAME, None))[0]
    assert {"metric.json", "metric.safetensors"} <= {file.name for file in folder.iterdir()}


def test_weights_that_the_hub_does_not_state_are_refused(hub: HubServer) -> None:
    """Law: their SHA-256 is the stated one, fresh and from the cache."""
    hub.add(NAME, MINILM)
    content = bytearray((MINILM / WEIGHTS).read_bytes())
    content[-3] ^= 1
    hub.contents = {WEIGHTS: bytes(content)}
    for _ in range(2):
        assert refusal().startswith(f"{NAME}: {WEIGHTS} in the cache is not the file that {hub.url} states (SHA-256 ")


def test_damaged_weights_of_the_cache_are_refused(hub: HubServer) -> None:
    """With the hub, and where the hub cannot be asked."""
    hub.add(NAME, MINILM)
    folder, _ = download(HubName(NAME, None))
    blob = (folder / WEIGHTS).resolve()
    whole = blob.read_bytes()
    blob.write_bytes(bytes([*whole[:-1], whole[-1] ^ 1]))
    for status in (0, 503):
        hub.refuses = status
        assert f"delete {blob}, and import it again" in refusal()
    blob.write_bytes(whole)
    assert download(HubName(NAME, None))[0] == folder


ANSWERS: dict[str, Any] = {
    "HTML": b"<!doctype html><title>Sign in</title>",
    "nothing": b"",
    "cut off": b'{"id": "org/mini-lm", "sha"',
    "other text": b"\xff\xfe",
    "a list": [],
    "a number": 5,
    "null": None,
    "empty": {},
    "nested": b"[" * 100_000,
    **{f"siblings {value!r}": {"siblings": value} for value in (5, "config.json", {"a": 1}, [5], [{}], [None])},
    **{f"size {value!r}": {"siblings": [{"rfilename": "config.json", "size": value}]} for value in ("many", [1], 1e999)},
    **{f"lfs {value!r}": {"siblings": [{"rfilename": "x", "lfs": value}]} for value in (5, [1], {"sha256": 1}, {"size": 2})},
    "dates": {"createdAt": "yesterday"},
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_a_server_that_is_no_hub_is_one_line_with_its_name(hub: HubServer, tmp_path: Path, case: str) -> None:
    sha, answer = hub.add(NAME, MINILM), ANSWERS[case]
    whole = {"id": NAME, "sha": sha, "siblings": [sibling("config.json", b"{}")]}
    hub.says = {"/api/models/": whole | answer if isinstance(answer, dict) and answer else answer}
    error = refusal()
    assert error.startswith(f"{hub.url} does not answer as a hub does (") and error.endswith("): check HF_ENDPOINT")
    assert len(error) < 300 and not list(tmp_path.rglob("outside*"))


@pytest.mark.parametrize("path", ["/api/repos/create", "/api/models/me/x", "/me/x"])
@pytest.mark.parametrize("answer", [b"<!doctype html>", [], {}, {"files": 5}, {"objects": [1], "files": [{}]}], ids=str)
def test_a_push_to_a_server_that_is_no_hub_is_one_line(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, answer: Any
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.says = {path: answer}
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(bytes(99))
    with pytest.raises(ValueError, match=f"^{hub.url} does not answer as a hub does .*: check HF_ENDPOINT$"):
        push(folder, "me/x", private=False, keep_card=True)


# Push -----------------------------------------------------------------------------------------------------------------


def test_a_push_is_one_commit_that_is_imported_bit_for_bit(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    command("import", "hf", MINILM, "run")
    said = command("export", "hf", "run", "me/copy", "--push", "--private", "--license", "mit").notes
    assert len(said) == 2 and said[0].startswith("pushing ") and said[1].endswith("of step 0 are in me/copy")
    copy = hub.repos["me/copy"]
    assert copy.private and len(copy.commits) == 2
    files = copy.commits[copy.revisions["main"]]
    assert files[WEIGHTS] == (MINILM / WEIGHTS).read_bytes()
    assert files["tokenizer.json"] == (MINILM / "tokenizer.json").read_bytes()
    assert 'license: "mit"' in (card := files["README.md"].decode()) and 'SentenceTransformer("me/copy")' in card
    folder, _ = download(HubName("me/copy", None))
    ours, theirs = load_file(folder / WEIGHTS), load_file(MINILM / WEIGHTS)
    assert ours.keys() == theirs.keys() and all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)


def test_a_push_replaces_an_older_model_and_keeps_its_card(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    old = shutil.copytree(sharded(), tmp_path / "old")
    (old / "README.md").write_text("by hand")
    (old / "notes.txt").write_text("by hand")
    before = hub.add("me/model", old)
    command("import", "hf", MINILM, "run")
    words = ("export", "hf", "run", "me/model", "--push")
    for options, status, complaint in (
        (("--license", "mit"), 0, "license is set, but me/model has a README.md, which is kept"),
        (("--private",), 0, f"private is set, but me/model is public: change it in {hub.url}/me/model/settings"),
        ((), -500, "answers 500 for me/model (out of order): try again later"),
    ):
        hub.refuses = status
        status, said = command.ended(*words, *options)
        assert status == 2 and complaint in said.err and hub.repos["me/model"].revisions["main"] == before
    hub.refuses = 0
    assert "me/model has a README.md: it is kept" in command(*words).err
    files = hub.repos["me/model"].commits[hub.repos["me/model"].revisions["main"]]
    assert files["README.md"] == files["notes.txt"] == b"by hand" and WEIGHTS in files
    assert INDEX not in files and not any(file.startswith("model-") for file in files)


def test_a_push_that_cannot_be_is_one_line(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    command("import", "hf", DATA / "distilbert/model", "run")
    for words, complaint in (
        (("hf", "run", "folder", "--push"), "push is set, but the output is folder: give the model's name"),
        (("hf", "run", "me/copy@v1", "--push"), "output is me/copy@v1: give"),
        (("hf", "run", "folder", "--private"), "private is set without push: set both or none"),
        (("paddle", "run", "me/copy", "--push"), "--push, but paddle has no such option"),
        (("hf", "run", "me/copy", "--push"), "push needs a token that may write: log in with"),
    ):
        status, said = command.ended("export", *words)
        assert status == 2 and said.notes[-1].startswith("error: ") and complaint in said.err and not hub.repos
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    status, said = command.ended("export", "hf", "run", "others/copy", "--push")
    assert status == 2 and "refuses access to others/copy (You don't have the rights" in said.err


@pytest.mark.slow
def test_a_notebook_without_widgets_shows_no_warning_of_the_library():
    """Law: what the library's bars lack in a notebook is not a reader's business; here they are no widgets."""
    code = """
        import sys, types
        sys.modules["ipykernel.zmqshell"] = types.ModuleType("zmqshell")
        sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: None)
        sys.modules["ipywidgets"] = None
        import flaxformer_lite.interop.hub
    """
    done = subprocess.run([sys.executable, "-c", inspect.cleandoc(code)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
