"""A run with fewer tokens. Laws: kept rows have every bit, settings name the same tokens, logits of kept tokens are as before."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite import load
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import Learned, ModelConfig
from flaxformer_lite.core.objectives import MaskedLM, SentenceEmbeddings, SpanCorruption
from flaxformer_lite.core.reading.heads import SentenceEmbedding
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.text import Characters, Tokenizers
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.chats.chat import chat_template
from flaxformer_lite.files.chats.translation_prompt import SOURCE_ALONE
from flaxformer_lite.files.data.store import train_tokenizers
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.run import write_run
from flaxformer_lite.run.trimming import named_ids, own_ids, trim, with_kept_ids, with_new_ids
from flaxformer_lite.workdir import RunFolder
from tests.support.chats import NAMES, TEMPLATES, ours, without_generation
from tests.support.commands import Command
from tests.support.hf_folders import ENCODER, HEAD, config_of, random_params
from tests.support.language_runs import language_config

pytestmark = pytest.mark.usefixtures("one_device")


def drawn_run(folder: Path, **changes: Any) -> Path:
    """A run of three languages with random weights, an output head of its own, and rows that no token has."""
    config = language_config(folder)
    model = dataclasses.replace(config.model, share_target_output=False, padding_id=0, vocab_size=48)
    tokenizers = train_tokenizers(config.data, model.vocab_sizes, config.data.train.open())  # type: ignore[union-attr]
    model = dataclasses.replace(model, vocab_size=53)
    data = dataclasses.replace(config.data, train=None, eval=None)  # whose languages stay
    if "objective" in changes:
        data = dataclasses.replace(data, languages=None)
    train = dataclasses.replace(config.train, text_metrics=())
    config = dataclasses.replace(config, **({"model": model, "data": data, "train": train} | changes))
    imported = {"system": "hf", "config": {"vocab_size": 53, "eos_token_id": 3, "rows": 53}, "generation": None}

    def add_files(run: Path) -> None:
        (run / "huggingface").mkdir()
        settings = {"chat_template": [{"name": "default", "template": "{{ a }}"}, {"name": "rag", "template": "b"}]}
        (run / "huggingface/tokenizer_config.json").write_text(json.dumps(settings))
        (run / "taught_by.json").write_text(json.dumps([{"name": "large", "license": None}]))

    params = random_params(config.model)
    write_run(
        RunFolder(folder / "run"),
        config,
        7,
        params,
        "drawn",
        tokenizers=tokenizers,
        imported=imported,
        add_files=add_files,
    )
    return folder / "run"


def test_kept_tokens_have_their_rows_their_settings_and_their_logits(tmp_path: Path, command: Command) -> None:
    decode = DecodeConfig(suppress_ids=(1, 50, 51), num_ids=48, max_new_tokens=6)
    run = drawn_run(tmp_path, decode=decode)
    (tmp_path / "text").write_text("one two\neins zwei\n" * 10)
    words = ("trim", run, "-o", tmp_path / "new", "--keep-ids", 50)
    said = command(*words, "--text", tmp_path / "text").err
    old, new = load(run), load(tmp_path / "new")
    size = new.config.model.vocab_size
    assert f"{size} of 53 ids and " in said and "of 2 lines held out 0 need a token" in said
    names = new.tokenizer.pieces(range(size - 1))  # but for that of --keep-ids
    assert {"<de>", "<en>", "<fr>"} <= {*names} and "cut otherwise" not in said
    every = old.tokenizer.pieces(range(48))
    kept = [*map(every.index, names), 50]
    assert kept == sorted(kept) and 10 < size < 48
    before, after = leaves_by_path(old.params), leaves_by_path(new.params)
    for path, x in before.items():
        axes = [axis for axis, length in enumerate(x.shape) if length == 53]
        np.testing.assert_array_equal(after[path], np.take(x, kept, axes[0]) if axes else x, err_msg=path)
    assert new.step == 7 and new.config.decode == dataclasses.replace(
        decode, suppress_ids=(1, size - 1), num_ids=size - 1
    )
    assert new.config.data.languages == old.config.data.languages
    imported = json.loads((tmp_path / "new/imported.json").read_text())
    assert imported["config"] == {"vocab_size": size, "eos_token_id": 3, "rows": 53}
    assert (tmp_path / "new/huggingface/chat_template.jinja").read_text() == "{{ a }}"
    assert (tmp_path / "new/huggingface/additional_chat_templates/rag.jinja").read_text() == "b"
    assert new.folder.teachers == [{"name": "large", "license": None}]
    ids = [new.tokenizer.encode("eins two one zwei")]
    theirs = [[kept[i] for i in row] for row in ids]
    assert theirs == [old.tokenizer.encode("eins two one zwei")]
    logits = new.forward(input_ids=np.array(ids), decoder_input_ids=np.array(ids)).logits
    wanted = old.forward(input_ids=np.array(theirs), decoder_input_ids=np.array(theirs)).logits
    assert logits is not None and wanted is not None
    assert abs(logits - wanted[..., kept]).max() <= 1e-6 * abs(wanted).max()


def test_settings_name_the_same_tokens() -> None:
    """By hand: of ids 0 to 36, these stay."""
    kept = [0, 1, 2, 3, 5, 6, 8, 30, 34, 35, 36]
    model = ModelConfig(**ENCODER, head=HEAD, padding_id=5)
    config = dataclasses.replace(
        config_of(model), objective=MaskedLM(mask_token=36), decode=DecodeConfig(pad_id=5, eos_ids=(3, 8))
    )
    assert named_ids(config) == {5, 36, 3, 8, 2}
    made = with_kept_ids(config, kept)
    assert (made.model.vocab_size, made.model.padding_id, made.objective) == (11, 4, MaskedLM(mask_token=10))
    assert (made.decode.pad_id, made.decode.eos_ids, made.decode.num_ids) == (4, (3, 6), None)
    both = dataclasses.replace(model, num_decoder_layers=1)
    spans = dataclasses.replace(config_of(both), objective=SpanCorruption(first_sentinel=36, num_sentinels=3))
    assert with_kept_ids(spans, kept).objective == SpanCorruption(first_sentinel=10, num_sentinels=3)
    options = {
        "pad_token_id": 5,
        "eos_token_id": [3, 4],
        "text_config": {"bos_token_id": 7, "vocab_size": 37},
        "d_ff": 37,
    }
    assert with_new_ids(options, {i: number for number, i in enumerate(kept)}, 37) == {
        "pad_token_id": 4,
        "eos_token_id": [3],
        "text_config": {"bos_token_id": None, "vocab_size": 11},
        "d_ff": 37,
    }


def test_lines_that_are_cut_otherwise_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: a tokenizer that has lost "one" cuts each third line otherwise."""
    (tmp_path / "text").write_text("one\ntwo\nzwei\n" * 5)
    with_ids = JsonTokenizer.with_ids

    def without_one(self: JsonTokenizer, kept: Sequence[int]) -> JsonTokenizer:
        fields = json.loads(with_ids(self, kept).description)
        fields["model"]["merges"] = [pair for pair in fields["model"]["merges"] if "".join(pair) != "▁one"]
        return JsonTokenizer(json.dumps(fields), with_ids(self, kept).special)

    run = drawn_run(tmp_path)
    assert load(run).tokenizer.pieces(load(run).tokenizer.encode("one")) == ["▁one"]
    monkeypatch.setattr(JsonTokenizer, "with_ids", without_one)
    trim(run, tmp_path / "new", text=str(tmp_path / "text"))
    assert "5 of the first 15 lines are cut otherwise than before" in capsys.readouterr().err


def test_sentinels_stay_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two\n")
    run = drawn_run(tmp_path, objective=SpanCorruption(first_sentinel=52, num_sentinels=4))
    old, new = load(run), load(trim(run, tmp_path / "new", text=str(tmp_path / "text")))
    size = new.config.model.vocab_size
    assert size < 48 and new.config.objective == SpanCorruption(first_sentinel=size - 1, num_sentinels=4)
    rows = [leaves_by_path(one.params)["embedding/embedding"] for one in (old, new)]
    np.testing.assert_array_equal(rows[0][-4:], rows[1][-4:])


def test_the_prompts_of_a_run_are_read_as_before(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two\n")
    sizes = ENCODER | {"vocab_size": 53, "positions": Learned(max_positions=64)}
    model = ModelConfig(**sizes, head=None, sentence_embedding=SentenceEmbedding())
    run = drawn_run(tmp_path, model=model, objective=SentenceEmbeddings(prompts=(("query", "sechs "),)))
    old, new = (one.tokenizer for one in (load(run), load(trim(run, tmp_path / "new", text=str(tmp_path / "text")))))
    assert new.pieces(new.encode("sechs one")) == old.pieces(old.encode("sechs one"))
    assert new.vocab_size < old.vocab_size


def test_the_words_of_a_chat_template_stay() -> None:
    """By hand: the template writes the two roles; "an", "is" and "ll" are pieces."""
    tokenizer = ours()
    template = chat_template(without_generation(TEMPLATES["chatml"]), tokenizer, NAMES)
    form = Asking(Tokenizers(tokenizer, tokenizer), DecodeConfig(), 10**3, template, SOURCE_ALONE)
    pieces = {*tokenizer.pieces(sorted(own_ids(SentenceEmbeddings(prompts=(("query", "all"),)), form, tokenizer)))}
    assert pieces == {"<|im_start|>", "<|im_end|>", "Ċ", *"userat", "is", "an", "ll"}


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two\n")
    run = drawn_run(tmp_path)
    for given, message in (
        ({"keep_ids": [53]}, "keep_ids has 53, which is no token id: ids must be between 0 and 52"),
        ({"text": str(tmp_path / "none")}, "none: no such file"),
        ({"keep_ids": range(53)}, "the text needs all 53 ids of"),
    ):
        with pytest.raises(ValueError, match=message):
            trim(run, tmp_path / "new", **({"text": str(tmp_path / "text")} | given))  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_runs_without_one_table_of_subwords_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two\n")
    config = config_of(ModelConfig(**ENCODER, head=HEAD))
    write_run(RunFolder(tmp_path / "ids"), config, 0, random_params(config.model), "drawn")
    with pytest.raises(ValueError, match="ids has no tokenizer: only a run that reads texts can be cut"):
        trim(tmp_path / "ids", tmp_path / "new", text=str(tmp_path / "text"))
    letters = Characters().train(["one two"], 37)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, tokenizer=Characters()))
    tokenizers = Tokenizers(letters, letters)
    write_run(RunFolder(tmp_path / "letters"), config, 0, random_params(config.model), "drawn", tokenizers=tokenizers)
    with pytest.raises(ValueError, match="the tokenizer is a CharacterTokenizer: only tables of subwords are cut"):
        trim(tmp_path / "letters", tmp_path / "new", text=str(tmp_path / "text"))
