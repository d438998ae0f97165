"""Adapters of PEFT, in and out. Oracle: the answers of PEFT itself, in tests/fixtures/peft and, where it is installed, now."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from flaxformer_lite import export_hf, import_hf, load, train
from flaxformer_lite.config import TrainConfig, load_config
from flaxformer_lite.core.model import LoRA
from flaxformer_lite.core.objectives import Instruction
from flaxformer_lite.core.optim import Constant, OptimizerConfig
from flaxformer_lite.files.chats.chat import PLAIN_TEMPLATE
from flaxformer_lite.files.data import TSV
from flaxformer_lite.interop.hf.import_folder import read_folder
from flaxformer_lite.interop.hf.peft import is_adapter, read_adapters
from flaxformer_lite.run import Run
from tests.support.commands import Command
from tests.support.hf_folders import DATA
from tests.support.limits import assert_close
from tests.support.paths import FIXTURES, ROOT
from tests.support.quick import quick
from tests.support.torch_files import write_torch

FOLDERS = sorted(path.parent for path in (FIXTURES / "peft").glob("*/io.npz"))
UNFUSED = [folder for folder in FOLDERS if folder.name != "gpt2_fused"]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders name their bases from there."""
    monkeypatch.chdir(ROOT)


def base_of(folder: Path) -> Path:
    return Path(json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"])


def inputs_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(base_of(folder) / "io.npz") as file:
        return {name.removeprefix("in/"): file[name] for name in file.files if name.startswith("in/")}


def assert_answers(run: Run, folder: Path) -> None:
    """Compares the logits of all tokens with PEFT's."""
    inputs = inputs_of(folder)
    shown = inputs.get("decoder_attention_mask", inputs["attention_mask"]).astype(bool)
    expected = np.load(folder / "io.npz")["logits"]
    assert_close(run.forward(**inputs).logits[shown], expected[shown])


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_adapters_answer_as_in_peft_as_they_are_and_merged(folder: Path, tmp_path: Path):
    run = load(import_hf(folder, tmp_path / "run"))
    assert run.config.model.lora is not None
    assert_answers(run, folder)
    export_hf(tmp_path / "run", tmp_path / "merged")
    merged = load(import_hf(tmp_path / "merged", tmp_path / "again"))
    assert merged.config.model.lora is None
    assert_answers(merged, folder)
    assert_answers(load(tmp_path / "run"), folder)


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # PEFT calls transformers by an older name
@pytest.mark.parametrize(
    "folder", quick(UNFUSED, lambda folder: folder.name == "llama_plain"), ids=lambda folder: folder.name
)
def test_adapters_are_written_as_peft_reads_them(folder: Path, tmp_path: Path):
    """Without PEFT by reading them again."""
    import_hf(folder, tmp_path / "run")
    export_hf(tmp_path / "run", tmp_path / "adapters", adapters=True)
    assert base_of(tmp_path / "adapters") == base_of(folder)
    assert_answers(load(import_hf(tmp_path / "adapters", tmp_path / "again")), folder)
    peft = pytest.importorskip("peft")
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(base_of(folder))
    model = getattr(transformers, config.architectures[0]).from_pretrained(base_of(folder)).float()
    adapted = peft.PeftModel.from_pretrained(model, str(tmp_path / "adapters")).eval()
    with torch.no_grad():
        found = adapted(**{name: torch.tensor(x) for name, x in inputs_of(folder).items()}).logits.numpy()
    assert_close(found, np.load(folder / "io.npz")["logits"])


@pytest.mark.parametrize("name", ["llama_plain", "bert_default"])
def test_plain_adapters_keep_their_bits_and_their_settings(name: str, tmp_path: Path):
    folder = FIXTURES / "peft" / name
    lora = load_config(str(import_hf(folder, tmp_path / "run") / "config.json")).model.lora
    options = json.loads((folder / "adapter_config.json").read_text())
    assert (lora.rank, lora.alpha, lora.dropout) == (options["r"], options["lora_alpha"], options["lora_dropout"])
    assert lora.dropout == {"llama_plain": 0, "bert_default": 0.1}[name]
    export_hf(tmp_path / "run", tmp_path / "adapters", adapters=True)
    before, after = (load_file(path / "adapter_model.safetensors") for path in (folder, tmp_path / "adapters"))
    assert before.keys() == after.keys()
    for name, x in before.items():
        np.testing.assert_array_equal(after[name], x)
    theirs, ours = (json.loads((x / "adapter_config.json").read_text()) for x in (folder, tmp_path / "adapters"))
    theirs["target_modules"].sort()
    names = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "bias")
    assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}


def edited(folder: Path, output: Path, **changes: Any) -> Path:
    shutil.copytree(folder, output)
    config = json.loads((output / "adapter_config.json").read_text())
    (output / "adapter_config.json").write_text(json.dumps(config | changes))
    return output


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, 'peft_type is "IA3"'),
        ({"use_dora": True}, "use_dora is true"),
        ({"modules_to_save": ["lm_head"]}, r'modules_to_save is \["lm_head"\]'),
        ({"bias": "all"}, 'bias is "all"'),
        ({"init_lora_weights": "pissa"}, 'init_lora_weights is "pissa"'),
        ({"trainable_token_indices": [3]}, r"trainable_token_indices is \[3\]"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is"),
        ({"never_heard_of": 7}, "never_heard_of is 7"),
        ({"r": 0}, "r is 0: it should be at least 1"),
        ({"r": 5}, r"q_proj has an adapter of shapes \(18, 4\) and \(4, \d+\): they should be \(18, 5\)"),
        ({"rank_pattern": {"(": 4}}, r"rank_pattern is .*: \( is no pattern"),
        ({"rank_pattern": {"q_proj": 4.0}}, "the value of q_proj should be a whole number"),
        ({"rank_pattern": {"q_proj": True}}, "the value of q_proj should be a whole number"),
        ({"alpha_pattern": {"q_proj": "a"}}, "the value of q_proj should be a number"),
        ({"alpha_pattern": {"q_proj": 0}}, "the value of q_proj should be a number above 0"),
        ({"lora_alpha": 0}, "lora_alpha is 0: it should be above 0.*import the base"),
        ({"lora_alpha": -2}, "lora_alpha is -2: it should be above 0.*merge them by PEFT"),
        ({"lora_bias": True}, "lora_bias is true"),
        ({"target_parameters": ["mlp"]}, r"target_parameters is \["),
        ({"base_model_name_or_path": None}, "base_model_name_or_path is missing"),
        ({"base_model_name_or_path": "/no/such/base"}, "names the base /no/such/base: /no/such/base does not exist"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_read_is_named(changes: dict[str, Any], message: str, tmp_path: Path):
    folder = edited(FIXTURES / "peft" / "llama_plain", tmp_path / "adapters", **changes)
    with pytest.raises(ValueError, match=message):
        import_hf(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama_patterns", ("alpha / rank", "part of B", "model.layers.0.", "further training is not")),
        ("gpt2_fused", ("attn.c_attn", "one A for several projections", "further training is not")),
        ("llama_plain", ()),
        ("t5_rslora", ()),
        ("llama_one_layer", ()),
    ],
)
def test_adapters_that_would_train_otherwise_than_in_peft_say_so(
    name: str, words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture
):
    import_hf(FIXTURES / "peft" / name, tmp_path / "run")
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
    assert ("further training" in error) == bool(words)


def other_tensors(change: Callable[[dict[str, np.ndarray]], object], output: Path) -> Path:
    folder = edited(FIXTURES / "peft" / "llama_plain", output)
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x: x.update({"base_model.model.lm_head.weight": np.ones((3, 3), np.float32)}),
            "1 array left over: lm_head",
        ),
        (lambda x: x.pop(next(name for name in x if "lora_B" in name)), "without its other matrix"),
        (lambda x: x.update({next(iter(x)): np.full((4, 18), np.nan, np.float32)}), "has a NaN or an infinity"),
        (lambda x: x.clear(), "holds no adapter"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: Callable, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        import_hf(other_tensors(change, tmp_path / "adapters"), tmp_path / "run")


def test_an_adapter_of_the_head_is_named(tmp_path: Path):
    """Its matrix is no projection, and this base has one of its own."""
    sizes = {"lm_head.lora_A": (4, 18), "lm_head.lora_B": (41, 4)}
    more = {f"base_model.model.{name}.weight": np.ones(shape, np.float32) for name, shape in sizes.items()}
    folder = other_tensors(lambda x: x.update(more), tmp_path / "adapters")
    with pytest.raises(ValueError, match="2 arrays left over: lm_head"):
        import_hf(folder, tmp_path / "run")
    untied = edited(folder, tmp_path / "untied", base_model_name_or_path="tests/fixtures/hf/llama/linear")
    with pytest.raises(ValueError, match="untied: head has an adapter: only projections can have one here"):
        import_hf(untied, tmp_path / "run")


def test_what_cannot_be_written_is_named(tmp_path: Path, command: Command):
    import_hf(DATA / "llama/gqa_llama3", tmp_path / "base")
    with pytest.raises(ValueError, match=r"has no adapters \(model\.lora is None\)"):
        export_hf(tmp_path / "base", tmp_path / "out", adapters=True)
    import_hf(FIXTURES / "peft/gpt2_fused", tmp_path / "gpt2")
    with pytest.raises(ValueError, match=r"c_attn\.weight holds query and others in one matrix"):
        export_hf(tmp_path / "gpt2", tmp_path / "out", adapters=True)
    command.mistake("export", "ctranslate2", tmp_path / "gpt2", tmp_path / "out", "--adapters")
    assert not (tmp_path / "out").exists()


def with_tokenizer(folder: Path, *words: str, template: str | None = None) -> Path:
    """Adds the tokenizer of these words, and a chat template."""
    vocabulary = {word: i for i, word in enumerate(("<unk>", "<s>", "</s>", "<pad>", *words))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def test_a_pattern_from_the_beginning_is_of_the_names_of_the_adapted_class(tmp_path: Path):
    """Oracle: the adapters of the whole model; those of the class without a head have names without its prefix."""
    start, prefix = "base_model.model.", "model."
    whole = edited(
        FIXTURES / "peft/llama_plain", tmp_path / "whole", alpha_pattern={r"^model\.layers\.1\..*q_proj": 5.0}
    )
    bare = edited(FIXTURES / "peft/llama_plain", tmp_path / "bare", alpha_pattern={r"^layers\.1\..*q_proj": 5.0})
    tensors = load_file(bare / "adapter_model.safetensors")
    renamed = {name.replace(start + prefix, start): x for name, x in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, bare / "adapter_model.safetensors")
    plain = load(import_hf(FIXTURES / "peft/llama_plain", tmp_path / "plain_run")).params
    expected, found = (load(import_hf(path, tmp_path / f"{path.name}_run")).params for path in (whole, bare))
    chex.assert_trees_all_equal(found, expected)
    with pytest.raises(AssertionError):
        chex.assert_trees_all_equal(found, plain)


def test_adapters_of_torch_save_are_read_as_those_in_safetensors(tmp_path: Path):
    """Oracle: the folder as it is. A whole model of `torch.save` beside safetensors of adapters is not the folder's model."""
    folder = edited(FIXTURES / "peft/llama_plain", tmp_path / "adapters")
    base, file = read_folder(base_of(folder)), folder / "adapter_model.safetensors"
    wanted = read_adapters(folder, base).params
    write_torch(folder / "pytorch_model.bin", load_file(file))
    assert is_adapter(folder)
    (folder / "pytorch_model.bin").rename(folder / "adapter_model.bin")
    file.unlink()
    assert is_adapter(folder)
    chex.assert_trees_all_equal(read_adapters(folder, base).params, wanted)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(ValueError, match=r"has no adapter_model\.safetensors: copy it there too"):
        read_adapters(folder, base)


@pytest.mark.parametrize(
    "change",
    [
        lambda name: name.replace(".weight", ".default.weight"),
        lambda name: name.replace(".weight", ".another.weight"),
        lambda name: f"module.{name}",
        lambda name: name.replace("base_model.", "base_model._orig_mod."),
        lambda name: f"_fsdp_wrapped_module.net.{name.replace('.weight', '.default.weight')}",
    ],
    ids=["default", "another", "devices", "compiled", "all"],
)
def test_names_of_a_wrapped_model_are_read_as_plain_ones(change: Callable[[str], str], tmp_path: Path):
    """Oracle: the file under PEFT's own names. A wrong name is still refused, and so are two adapters in one file."""
    folder = edited(FIXTURES / "peft/llama_plain", tmp_path / "adapters")
    base = read_folder(base_of(folder))
    wanted, tensors = read_adapters(folder, base), load_file(folder / "adapter_model.safetensors")
    renamed = {change(name): x for name, x in tensors.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    chex.assert_trees_all_equal(read_adapters(folder, base).params, wanted.params)
    stray = {change(min(tensors)).replace("layers.0", "layers.77"): min(tensors.items())[1]}
    save_file(renamed | stray, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"arrays? left over: .*lora_"):
        read_adapters(folder, base)
    second = {name.replace(".weight", ".second.weight"): x for name, x in tensors.items()}
    save_file(tensors | second, folder / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"holds several adapters, by .*: save each in a folder of its own"):
        read_adapters(folder, base)


def test_a_tokenizer_and_a_template_beside_the_adapters_come_first(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Law: both are in the run, and in both exports; a folder of adapters without them leaves the base's."""
    base = with_tokenizer(
        Path(shutil.copytree(DATA / "llama/gqa_llama3", tmp_path / "base")), "a", "b", template="[base]"
    )
    plain = edited(FIXTURES / "peft/llama_plain", tmp_path / "plain", base_model_name_or_path=str(base))
    own = with_tokenizer(Path(shutil.copytree(plain, tmp_path / "own")), "b", "a", "c", template="[own]")
    for folder, ids, template in ((plain, [4, 5], "[base]"), (own, [5, 4], "[own]")):
        run = load(import_hf(folder, tmp_path / f"{folder.name}_run"))
        assert run.required_tokenizers.target.encode("a b") == ids
        for adapters in (True,) if folder == plain else (True, False):
            out = tmp_path / f"{folder.name}_{adapters}"
            export_hf(run.folder.path, out, adapters=adapters)
            assert (out / "chat_template.jinja").read_text() == template
            assert (out / "tokenizer.json").read_bytes() == (
                (own if folder == own else base) / "tokenizer.json"
            ).read_bytes()
    assert "no chat template" not in capsys.readouterr().err
    (base / "chat_template.jinja").unlink()
    import_hf(base, tmp_path / "without")
    file = tmp_path / "without" / "chat_template.jinja"
    assert f"no chat template came with it: if it is a chat model, put its own into {file}" in capsys.readouterr().err


@pytest.mark.slow
def test_adapters_trained_here_name_the_imported_base(tmp_path: Path, one_device: None):
    """Law: import, train from it, export --adapters, import: the same logits, the base's tokenizer, the run's template."""
    base = with_tokenizer(Path(shutil.copytree(DATA / "llama/gqa_llama3", tmp_path / "base")), "a", "b")
    config = load_config(str(import_hf(base, tmp_path / "imported") / "config.json"))
    (tmp_path / "pairs.tsv").write_text("a b\tb\nb\ta a\n")
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, lora=LoRA(rank=2, alpha=6)),
        objective=Instruction(),
        data=dataclasses.replace(config.data, train=TSV(path=str(tmp_path / "pairs.tsv")), max_target_length=16),
        optimizer=OptimizerConfig(schedule=Constant(peak_rate=0.1, warmup_steps=0)),
        train=TrainConfig(steps=2, init_from=str(tmp_path / "imported")),
    )
    trained = train(config, tmp_path / "run")
    export_hf(tmp_path / "run", tmp_path / "adapters", adapters=True)
    assert base_of(tmp_path / "adapters") == base
    assert (tmp_path / "adapters/tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert (tmp_path / "adapters/chat_template.jinja").read_text() == PLAIN_TEMPLATE
    found = load(import_hf(tmp_path / "adapters", tmp_path / "again"))
    ids = {"input_ids": [[1, 4, 5, 2]]}
    assert_close(found.forward(**ids).logits, trained.forward(**ids).logits)
    before = load(tmp_path / "imported").forward(**ids).logits
    assert np.abs(np.asarray(found.forward(**ids).logits) - before).max() > 1e-3
    # The base of adapters on a model that was tuned before is not the imported one.
    whole = dataclasses.replace(config, model=dataclasses.replace(config.model, lora=None))
    train(whole, tmp_path / "tuned")
    on_tuned = dataclasses.replace(config.train, init_from=str(tmp_path / "tuned"))
    train(dataclasses.replace(config, train=on_tuned), tmp_path / "second")
    export_hf(tmp_path / "second", tmp_path / "of_tuned", adapters=True)
    assert json.loads((tmp_path / "of_tuned/adapter_config.json").read_text())["base_model_name_or_path"] is None
