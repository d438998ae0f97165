"""Hand-worked cases of the data of a run: ids and texts that do not fit are named."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import chex
import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.objectives import CausalLM, MaskedLM, Seq2Seq, SpanCorruption
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.special_ids import SpecialIds
from flaxformer_lite.files.data import Dates, Mixture, ParallelText
from flaxformer_lite.files.data import store as token_store
from flaxformer_lite.files.data.store import small_parts
from flaxformer_lite.training.data import RunData, check_special_ids, count_texts, describe_texts, read_data
from flaxformer_lite.training.multihost import agreement
from flaxformer_lite.training.multihost.agreement import Processes
from flaxformer_lite.training.multihost.meeting import SharedError
from flaxformer_lite.training.signals import Interrupted
from flaxformer_lite.workdir.copies import is_copied
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.remote_run import RemoteRun
from tests.support.experiments import tiny_config


def test_a_text_that_another_process_reads_otherwise_is_named(monkeypatch: pytest.MonkeyPatch):
    """The file, not the setting alone: of parallel files the one that differs."""
    source = ParallelText(source="data/a.txt", target="data/b.txt")
    pairs = [Pair("a", "b"), Pair("c", "d")]
    several = Processes()
    several.count = 2

    def agree(read: list[Pair]) -> None:
        several.agree(
            lambda: describe_texts(source.parts("data.train"), [count_texts(read)]), "Give all hosts the same"
        )

    def patch_answer(answer: str) -> None:
        monkeypatch.setattr(agreement, "allgather_text", lambda text: [text, answer])

    for other, name in (
        ([Pair("a", "b"), Pair("c", "x")], r"data\.train\.target data/b\.txt"),
        ([Pair("ac", "b"), Pair("", "d")], r"data\.train\.source data/a\.txt"),
    ):
        heard: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(agreement, "allgather_text", lambda text, h=heard: h.append(text) or [text])
            agree(other)
            agree(pairs)
        patch_answer(heard[0])
        found = rf"^process 1 of 2: {name} is 2 texts with SHA-256 \w+, but 2 texts with SHA-256 \w+ in process 0\. Give all"
        with pytest.raises(SharedError, match=found):
            agree(pairs)
        patch_answer(heard[1])
        agree(pairs)


@pytest.mark.parametrize(
    ("objective", "decode", "complaint"),
    [
        (CausalLM(), {"eos_ids": (8,), "bos_id": 7}, None),  # its padding is read by nothing
        (CausalLM(), {"eos_ids": (5, 8), "bos_id": 7}, None),
        (CausalLM(), {"eos_ids": (8,)}, "decode.bos_id is 2, but the tokenizer's is 7: set it to that"),
        (CausalLM(), {"eos_ids": (), "bos_id": 7}, "decode.eos_ids is \\(\\), but the tokenizer's is 8"),
        (Seq2Seq(), {"eos_ids": (8,), "pad_id": 6, "bos_id": 1}, None),
        (Seq2Seq(), {"eos_ids": (8,)}, "decode.pad_id is 0, but the tokenizer's is 6"),
        (SpanCorruption(first_sentinel=300), {"pad_id": 6}, "decode.eos_ids is \\(3,\\), but the tokenizer's is 8"),
        (SpanCorruption(first_sentinel=300), {"eos_ids": (8,)}, "decode.pad_id is 0, but the tokenizer's is 6"),
        (MaskedLM(mask_token=9), {}, None),
    ],
)
def test_special_ids_of_decoding_are_those_that_are_learned(
    objective: Any, decode: dict[str, Any], complaint: str | None
) -> None:
    """Oracle: worked by hand; the tokenizer has padding 6, BOS 7 and EOS 8."""
    with contextlib.nullcontext() if complaint is None else pytest.raises(ValueError, match=complaint):
        check_special_ids(objective, DecodeConfig(**decode), SpecialIds(pad=6, bos=7, eos=8))


def test_large_data_is_stored_and_gives_what_small_data_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: tokenizer, fingerprint and batches; the second start tokenizes nothing; a signal stops the first one."""
    config = tiny_config()

    def read(name: str, check: Callable[[], None] = lambda: None) -> RunData:
        (tmp_path / name).mkdir(exist_ok=True)
        with Progress(1, silent=True) as progress:
            return read_data(config, RunFolder(tmp_path / name), progress, check)

    small = read("small")
    assert not (tmp_path / "small" / ".tokens").exists()
    monkeypatch.setattr(token_store, "MOST_RECORDS", 100)

    def stop() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        read("large", stop)
    large = read("large")
    assert large.train.fingerprint == small.train.fingerprint and len(large.records) == len(small.records)
    assert large.tokenizers.source.to_bytes() == small.tokenizers.source.to_bytes()
    chex.assert_trees_all_equal(large.train.batch(5), small.train.batch(5))
    monkeypatch.setattr(token_store, "write_shard", None)
    assert read("large").train.fingerprint == small.train.fingerprint
    assert not [name for name in RemoteRun(str(tmp_path / "large")).files() if "tokens" in name and is_copied(name)]


def test_of_several_processes_the_first_one_compares_the_tokens_of_a_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: whose start notices a flipped bit. A process whose folder is its own, or another's store, compares for itself."""
    monkeypatch.setattr(token_store, "MOST_RECORDS", 100)

    def read(silent: bool, shared: bool, store: str | None = None) -> RunData:
        config, folder = tiny_config(), RunFolder(tmp_path / "run", silent=silent)
        folder.path.mkdir(exist_ok=True)
        folder.shared = shared
        with Progress(1, silent=True) as progress:
            return read_data(replace(config, data=replace(config.data, store=store)), folder, progress)

    whole = read(False, True)
    file = next((tmp_path / "run" / ".tokens").glob("tokens-*/00000/ids.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert read(True, True).train.fingerprint == whole.train.fingerprint
    for others in ((False, True), (True, False), (True, True, str(tmp_path / "run" / ".tokens"))):
        with pytest.raises(ValueError, match=r"/00000: damaged \(its arrays are not as they were written\)"):
            read(*others)


def test_sources_that_are_small_one_by_one_may_be_large_together(monkeypatch: pytest.MonkeyPatch):
    """Else a mixture of a hundred sources would be held in memory and tokenized at every start. Oracle: worked by hand."""
    dates = [Dates(num_examples=n, seed=n) for n in (30, 20, 30)]
    for most, fit in ((80, True), (79, False), (29, False)):
        monkeypatch.setattr(token_store, "MOST_RECORDS", most)
        found = small_parts(Mixture(sources=tuple(dates)), "data.train")
        assert (found is not None) is fit and (not fit or [len(part) for part in found] == [30, 20, 30])
    monkeypatch.setattr(token_store, "MOST_RECORDS", 80)
    monkeypatch.setattr(token_store, "MOST_CHARACTERS", 1_000)
    assert small_parts(Mixture(sources=tuple(dates)), "data.train") is None


def test_a_mixture_is_the_same_from_stores_and_names_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: fingerprint and batches; each source has a store of its own. Evaluation has the pairs of each source under its name."""
    dates = [Dates(num_examples=n, seed=n) for n in (30, 20)]
    mixture = Mixture(sources=tuple(dates), names=("large", "small"), weights=(1.0, 2.0))
    config = tiny_config(data=replace(tiny_config().data, train=mixture, eval=mixture))

    def read(name: str, store: str | None) -> RunData:
        (tmp_path / name).mkdir()
        settings = replace(config, data=replace(config.data, store=store))
        with Progress(1, silent=True) as progress:
            return read_data(settings, RunFolder(tmp_path / name), progress)

    small, stored = read("small", None), read("stored", str(tmp_path / "tokens"))
    assert len(list((tmp_path / "tokens").glob("tokens-*"))) == 2
    assert small.train.fingerprint == stored.train.fingerprint
    for step in range(small.train.plan.batches_per_epoch):
        chex.assert_trees_all_equal(small.train.batch(step), stored.train.batch(step))
    assert small.eval is not None
    assert small.eval.parts == {"large": slice(0, 30), "small": slice(30, 50)}
    assert small.eval.pairs[small.eval.parts["small"]] == list(dates[1].open())
    assert [len(dataset.rows) for dataset in small.eval.datasets] == [30, 20]
