"""Learning tests of models of whole texts, from the config to the commands, on labelled texts made up here."""

import dataclasses
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.objectives import Classification, MaskedLM, Objectives, Regression, SentenceEmbeddings
from flaxformer_lite.core.optim import Constant, OptimizerConfig
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding
from flaxformer_lite.files.data.text_files import TSV, JSONLines, PlainText
from flaxformer_lite.files.records import Classes
from flaxformer_lite.training import train
from tests.support.commands import Command
from tests.support.experiments import tiny_config, with_train
from tests.support.paths import FIXTURES

LETTERS = "abcdefgh"
ENCODER = {"num_encoder_layers": 1, "num_decoder_layers": 0, "head": None}
DECODER = {"num_encoder_layers": 0, "num_decoder_layers": 1, "head": None}


pytestmark = pytest.mark.usefixtures("one_device")


def word(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(3, 7)))


def config_of(objective: Objectives, train_data: Any, eval_data: Any, steps: int, **model: Any) -> Config:
    base = tiny_config()
    data = dataclasses.replace(
        base.data,
        train=train_data,
        eval=eval_data,
        tokens_per_batch=32 * 16,
        bucket_lengths=(20,),
        max_source_length=20,
    )
    return dataclasses.replace(
        with_train(base, steps=steps, eval_every=steps, checkpoint_every=steps, log_every=steps, text_metrics=()),
        objective=objective,
        data=data,
        model=dataclasses.replace(base.model, **{"d_model": 24, **ENCODER, **model}),
        optimizer=OptimizerConfig(schedule=Constant(peak_rate=1e-2), weight_decay=0.0),
    )


def last_row(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


# Classification ----------------------------------------------------------------------------------------------------------


def whose(rng: random.Random) -> tuple[str, str]:
    """A text, and its class: which of three capitals it has."""
    text, label = word(rng), rng.choice(["xenon", "yttrium", "zinc"])
    place = rng.randint(0, len(text))
    return text[:place] + label[0].upper() + text[place:], label


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of labelled texts."""
    folder, rng = tmp_path_factory.mktemp("labelled"), random.Random(3)
    for split, number in (("train", 300), ("eval", 61)):
        (folder / f"{split}.tsv").write_text("".join("\t".join(whose(rng)) + "\n" for _ in range(number)))
    return folder


def table(folder: Path, split: str) -> TSV:
    return TSV(path=str(folder / f"{split}.tsv"), record=Classes(text=0, label=1))


@pytest.mark.slow
@pytest.mark.parametrize("stack", [ENCODER, DECODER], ids=["encoder", "decoder"])
def test_classes_are_learned_and_predicted(stack: dict, labelled: Path, tmp_path: Path, command: Command):
    """Threshold: every held-out text right; the command, `evaluate` and Python agree on what was said."""
    names = ("xenon", "yttrium", "zinc")
    pooler = Pooler(num_classes=3, token="first" if stack is ENCODER else "last")
    config = config_of(
        Classification(classes=names), table(labelled, "train"), table(labelled, "eval"), 60, pooler=pooler, **stack
    )
    config = with_train(config, best_metric="matthews")
    train(config, tmp_path / "run")
    row = last_row(tmp_path / "run")
    assert row["accuracy"] == row["macro_f1"] == row["matthews"] == 1
    assert row["loss"] < 0.1 and "perplexity" not in row
    texts, labels = zip(*(line.split("\t") for line in (labelled / "eval.tsv").read_text().splitlines()), strict=True)
    run = flaxformer_lite.load(tmp_path / "run")
    answers = run.classify(texts)
    assert [answer.label for answer in answers] == list(labels)
    assert all(sum(answer.scores.values()) == pytest.approx(1) for answer in answers)
    assert run.metrics(list(table(labelled, "eval").open()))["loss"] == pytest.approx(
        -np.mean([np.log(answer.scores[label]) for answer, label in zip(answers, labels, strict=True)]), rel=1e-4
    )
    if stack is ENCODER:
        (tmp_path / "lines").write_text("".join(text + "\n" for text in texts))
        out = command("classify", tmp_path / "run", tmp_path / "lines").lines
        assert out == [f"{answer.label}\t{answer.score:.6f}" for answer in answers]
        out = command("classify", tmp_path / "run", tmp_path / "lines", "--scores").lines
        assert [max(scores, key=scores.get) for scores in map(json.loads, out)] == list(labels)
        report = json.loads(command("evaluate", tmp_path / "run").out)
        assert report["examples"] == 61 and report["matthews"] == 1


@pytest.mark.slow
def test_a_number_is_learned_from_pairs(tmp_path: Path, command: Command):
    """Threshold: how many more letters the second text has, to a correlation of 0.9; which text is which matters."""
    rng = random.Random(4)
    for split, number in (("train", 400), ("eval", 61)):
        pairs = [(word(rng), word(rng)) for _ in range(number)]
        rows = [{"a": a, "b": b, "more": len(b) - len(a)} for a, b in pairs]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sources = [
        JSONLines(path=str(tmp_path / f"{split}.jsonl"), record=Classes(source="a", text="b", label="more"))
        for split in ("train", "eval")
    ]
    config = config_of(Regression(), *sources, steps=100, pooler=Pooler(num_classes=1), num_token_types=2)
    train(with_train(config, best_metric="pearson"), tmp_path / "run")
    row = last_row(tmp_path / "run")
    assert row["pearson"] > 0.9 and row["spearman"] > 0.85 and row["loss"] < 1
    run = flaxformer_lite.load(tmp_path / "run")
    (more,), (fewer,) = (run.classify([pair]) for pair in (("abc", "abcdefg"), ("abcdefg", "abc")))
    assert more.score > 1.5 and fewer.score < -1.5 and more.label == "" and more.scores == {}
    (tmp_path / "lines").write_text("abc\tabcdefg\n")
    assert command("classify", tmp_path / "run", tmp_path / "lines").out == f"{more.score:.6g}\n"


# Embeddings --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_texts_that_belong_together_come_together(tmp_path: Path, command: Command):
    """Threshold: a word in small letters finds the same letters shuffled and large, of 61 held out, nine times in ten."""
    rng = random.Random(5)
    for split, number in (("train", 500), ("eval", 61)):
        words = ["".join(rng.choices(LETTERS, k=7)) for _ in range(number)]
        lines = [f"{w}\t{''.join(rng.sample(w, len(w))).upper()}\n" for w in words]
        (tmp_path / f"{split}.tsv").write_text("".join(lines))
    sources = [TSV(path=str(tmp_path / f"{split}.tsv")) for split in ("train", "eval")]
    config = config_of(SentenceEmbeddings(), *sources, steps=100, sentence_embedding=SentenceEmbedding())
    with pytest.raises(
        ValueError, match=r"^train\.runner is 'pmap', but objective\.kind 'sentence_embeddings' .*: set it to 'mesh'\Z"
    ):
        with_train(config, runner="pmap")
    train(config, tmp_path / "run")
    assert last_row(tmp_path / "run")["accuracy"] > 0.9
    run = flaxformer_lite.load(tmp_path / "run")
    first, second = (list(side) for side in zip(*(pair[:2] for pair in sources[1].open()), strict=True))
    vectors = run.embed(first), run.embed(second)
    assert vectors[0].shape == (61, 24)
    np.testing.assert_allclose(np.linalg.norm(vectors[0], axis=1), 1, rtol=1e-5)
    assert ((vectors[0] @ vectors[1].T).argmax(1) == np.arange(61)).mean() > 0.9
    (tmp_path / "lines").write_text("".join(text + "\n" for text in first))
    out = command("embed", tmp_path / "run", tmp_path / "lines").lines
    np.testing.assert_array_equal(np.array([json.loads(line) for line in out], np.float32), vectors[0])
    command("embed", tmp_path / "run", tmp_path / "lines", "--output", tmp_path / "vectors.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), vectors[0])
    out = command("embed", tmp_path / "run", tmp_path / "eval.tsv", "--similarity").lines
    alike = [float(line.rpartition("\t")[2]) for line in out]  # behind the cells of its row
    np.testing.assert_allclose(alike, (vectors[0] * vectors[1]).sum(1), atol=2e-6)


# Masked language models with pairs of texts ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_next_sentence_is_learned_and_masks_are_filled(tmp_path: Path, command: Command):
    """Threshold: documents of one letter each, so both are told; a command and Python agree on what is behind a mask."""
    for split, lengths in (("train", (20, 22, 24, 26, 28)), ("eval", (21, 23))):
        documents = [letter * n for n in lengths for letter in LETTERS]
        (tmp_path / f"{split}.txt").write_text("\n".join(documents))
    sources = [PlainText(path=str(tmp_path / f"{split}.txt"), documents="lines") for split in ("train", "eval")]
    config = config_of(
        MaskedLM(mask_token=148, next_sentence=True), *sources, steps=90,
        pooler=Pooler(num_classes=2), num_token_types=2, head=ModelConfig(vocab_size=1).head,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"^model\.pooler is None, but objective\.next_sentence scores 2"):
        dataclasses.replace(config, model=dataclasses.replace(config.model, pooler=None))
    train(with_train(config, best_metric="next_sentence_accuracy"), tmp_path / "run")
    row = last_row(tmp_path / "run")
    assert row["next_sentence_accuracy"] > 0.8 and row["accuracy"] > 0.9
    run = flaxformer_lite.load(tmp_path / "run")
    texts = ["aaaa[MASK]aaaa", "b[MASK]bbb[MASK]bb"]
    answers = run.fill_mask(texts, 3)
    assert [[guesses[0].token for guesses in masks] for masks in answers] == [["a"], ["b", "b"]]
    for probabilities in ([guess.probability for guess in guesses] for masks in answers for guesses in masks):
        assert len(probabilities) == 3 and probabilities == sorted(probabilities, reverse=True)
    (tmp_path / "lines").write_text("".join(text + "\n" for text in texts))
    out = command("fill-mask", tmp_path / "run", tmp_path / "lines", "--top", "1").lines
    assert [line.split(" ||| ")[:3] for line in out] == [["0", "0", "a"], ["1", "0", "b"], ["1", "1", "b"]]
    said: list[str] = []
    assert run.fill_mask(["aaaa"], warn=said.append) == [[]] and "line 1 has no mask: write [MASK]" in said[-1]


# From another run, with its special ids ----------------------------------------------------------------------------------


CONFIG_FILE = """
import dataclasses
from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.files.data.text_files import TSV
from flaxformer_lite.files.records import Classes, Classes
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.objectives import Classification
from flaxformer_lite.files.tokenizers import FromRun

def get_config() -> Config:
    theirs = load_config("FOLDER/imported/config.json")
    return dataclasses.replace(
        theirs,
        model=dataclasses.replace(theirs.model, sentence_embedding=None, pooler=Pooler(num_classes=3)),
        objective=Classification(classes=("xenon", "yttrium", "zinc")),
        data=dataclasses.replace(
            theirs.data,
            train=TSV(path="LABELLED/eval.tsv", record=Classes(text=0, label=1)),
            tokenizer=FromRun(path="FOLDER/imported"),
            bucket_lengths=(16,),
            max_source_length=16,
        ),
        train=TrainConfig(steps=1, init_from="FOLDER/imported", init_fresh=("pooler/*",)),
    )
"""


@pytest.mark.slow
def test_a_hugging_face_folder_is_imported_and_trained_on(
    labelled: Path, tmp_path: Path, command: Command, capsys: pytest.CaptureFixture
):
    """As the guide has it: the tokenizer and its special ids come along, the new run stands alone."""
    pytest.importorskip("tokenizers")
    folder = FIXTURES / "hf" / "minilm" / "mean"
    command("import", "hf", folder, tmp_path / "imported")
    (tmp_path / "c.py").write_text(CONFIG_FILE.replace("FOLDER", str(tmp_path)).replace("LABELLED", str(labelled)))
    train(load_config(str(tmp_path / "c.py")), tmp_path / "run")
    assert "fresh: pooler/classes/bias" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "imported")
    run = flaxformer_lite.load(tmp_path / "run")
    tokenizer = run.required_tokenizers.source
    row = tokenizer.with_special_tokens(tokenizer.encode("a"), tokenizer.encode("b"))
    pieces = tokenizer.pieces(row.tokens)
    assert (pieces[0], pieces[-1], pieces.count("[SEP]"), row.types[-1]) == ("[CLS]", "[SEP]", 2, 1)
    assert run.classify(["a"])[0].label in ("xenon", "yttrium", "zinc")
    with pytest.raises(ValueError, match=r"^line 2 has two texts, but this run was trained on single texts"):
        run.classify(["a", ("a", "b")])
