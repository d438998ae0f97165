"""Laws of classes: in any batch and order the answer to a text is its answer alone. Oracles: NumPy in float64; the library."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.objectives import Classification
from flaxformer_lite.core.predictions.encoder import predict_class_logits
from flaxformer_lite.core.text.special_ids import BOS, EOS
from flaxformer_lite.files.data.text_files import TSV
from flaxformer_lite.files.records import Classes
from flaxformer_lite.run import Run, load
from tests.support.commands import Command
from tests.support.experiments import num_programs
from tests.support.objectives import labelled
from tests.support.paths import FIXTURES
from tests.support.text_runs import NAMES, TEXTS, alone, text_run, trained_on

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.mark.usefixtures("own_programs")
def test_shapes_are_few_and_a_longer_text_is_cut():
    """Law: eleven texts of many lengths compile at most three times; other texts of these lengths compile nothing."""
    run, said = text_run(), list[str]()
    run.classify(TEXTS, warn=said.append, first_line=5)
    assert said == ["line 7: the text has 17 tokens and was cut to 16 (data.max_source_length)"]
    predictor = run.text_model.batch_predictor(predict_class_logits, run.config.decode.bos_id)
    compiled = num_programs(predictor.function)
    assert compiled <= 3
    run.classify(TEXTS[::-1], warn=said.append)
    assert num_programs(predictor.function) == compiled
    cut, whole = run.classify(["a" * 15, "a" * 14], warn=said.append)
    assert cut.scores == pytest.approx(whole.scores, rel=1e-5)


def test_pairs_have_types_and_names_have_probabilities(run: Run):
    """Oracle: softmax of the model's scores in float64."""
    for texts in (("abc", "de"), ("de", "abc")):
        scores = np.asarray(alone(run, *texts).class_logits[0], np.float64)
        (answer,) = run.classify([texts])
        wanted = np.exp(scores) / np.exp(scores).sum()
        assert answer.scores == pytest.approx(dict(zip(NAMES, wanted, strict=True)), rel=1e-4)
        assert answer.label == NAMES[int(scores.argmax())] and answer.score == max(answer.scores.values())


def test_a_pair_whose_first_text_has_no_token_is_one_text(run: Run):
    """Oracle: the rows of training."""
    pair, text = run.required_tokenizers.source.encode_batch(["", "de"])
    (row,) = run.config.objective.make_rows([labelled(pair, text, NAMES[0])], Lengths(16, 0), 0, run.tokenizer)
    said: list[str] = []
    assert run.text_model.encode([pair, text], 1, said.append).tokens == row.tokens.tolist()
    assert run.text_model.encode([pair], 1, said.append).tokens == [BOS, EOS] and not said


def test_several_labels_are_those_above_the_threshold():
    """Oracle: sigmoid of the model's scores in float64; a threshold below all gives every class, best first, one above none."""
    for threshold in (0.5, 1e-6, 1 - 1e-6):
        run = text_run(objective=Classification(classes=NAMES, labels="several", threshold=threshold))
        (answer,) = run.classify(["abc"])
        wanted = 1 / (1 + np.exp(-np.asarray(alone(run, "abc").class_logits[0], np.float64)))
        assert answer.scores == pytest.approx(dict(zip(NAMES, wanted, strict=True)), rel=1e-4)
        order = np.argsort(-wanted)
        assert answer.labels == [NAMES[i] for i in order if wanted[i] > threshold]
        assert answer.label == NAMES[order[0]] and answer.score == max(answer.scores.values())


def test_a_pipe_is_answered_line_by_line(run: Run, command: Command):
    """Law: an answer for each line, in order, an empty one for a blank one; `--scores` has the same best class."""
    outs = [command.on(run, "classify", *options, stdin=b"abc\n\nhello\n")[0] for options in ([], ["--scores"])]
    first, second = (answer.label for answer in run.classify(["abc", "hello"]))
    assert [line.split("\t")[0] for line in outs[0]] == [first, "", second]
    assert outs[1][1] == "" and [max(scores, key=scores.get) for scores in map(json.loads, outs[1][::2])] == [
        first,
        second,
    ]


def test_a_pair_for_a_run_of_single_texts_is_named_with_its_file(run: Run, command: Command):
    single = trained_on(run, TSV(path="nowhere", record=Classes(text=0, label=1)))
    out, (said,) = command.on(single, "classify", stdin=b"a\nb\tc\n")
    assert len(out) == 2 and out[1] == ""
    reason = "has two texts, but this run was trained on single texts: give one; its answer is empty"
    assert said == f"warning: stdin, line 2 {reason}"


def test_one_text_for_a_run_of_pairs_is_named_with_its_file(run: Run, command: Command):
    pairs = trained_on(run, TSV(path="nowhere", record=Classes(source=0, text=1, label=2)))
    out, (said,) = command.on(pairs, "classify", stdin=b"a\tb\nc\n")
    assert len(out) == 2 and out[0] and out[1] == ""
    reason = "has one text, but this run was trained on pairs of texts: give two; its answer is empty"
    assert said == f"warning: stdin, line 2 {reason}"
    with pytest.raises(
        ValueError, match=r"^line 1 has one text, but this run was trained on pairs of texts: give two$"
    ):
        pairs.classify(["a"])


@pytest.mark.slow
def test_bart_classifies_as_the_library_does(tmp_path: Path, command: Command):
    """Oracle: softmax of the library's own scores; the fixture's ids as words of a tokenizer, together and alone."""
    theirs = FIXTURES / "hf/bart/classification"
    shutil.copytree(theirs, tmp_path / "theirs")
    with np.load(theirs / "io.npz") as file:
        ids, mask, logits = (file[name] for name in ("in/input_ids", "in/attention_mask", "out/logits"))
    words = ["<s>", "<pad>", "</s>", *(f"w{i}" for i in range(3, 41))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(names))
    command("import", "hf", tmp_path / "theirs", tmp_path / "run")
    run = load(tmp_path / "run")
    texts = [" ".join(words[i] for i in row[shown == 1][:-1]) for row, shown in zip(ids, mask, strict=True)]
    powers = np.exp(logits.astype(np.float64))
    out, _ = command.on(run, "classify", "--scores", stdin="\n".join(texts).encode())
    for line, row in zip(out, powers / powers.sum(1, keepdims=True), strict=True):
        assert json.loads(line) == pytest.approx({f"LABEL_{i}": p for i, p in enumerate(row)}, abs=1e-5)
    (alone,) = run.classify(texts[1:2])
    assert alone.scores == pytest.approx(json.loads(out[1]), abs=1e-5)
    (pair,) = run.classify([("w3 w4", "w5 w6 w7")])  # two ends, of which the last counts
    scores = np.exp(run.forward(input_ids=[[3, 4, 2, 5, 6, 7, 2]]).logits[0].astype(np.float64))
    assert list(pair.scores.values()) == pytest.approx(list(scores / scores.sum()), rel=1e-4)
    endless = dataclasses.replace(run.config, decode=dataclasses.replace(run.config.decode, eos_ids=(40,)))
    message = r"ends no text with 40, the first of decode.eos_ids, .*: use Run.forward from Python"
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(run, config=endless).classify(["w3"])
