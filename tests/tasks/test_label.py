"""Laws of labels for words: each word once, from the window with the most context; a tiny run learns; bad lines are told."""

import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model.config import PRE_NORM, ModelConfig
from flaxformer_lite.core.model.inputs import Inputs
from flaxformer_lite.core.model.layers import DropoutRates
from flaxformer_lite.core.model.positions import Rotary
from flaxformer_lite.core.objectives import Classification, TokenLabels
from flaxformer_lite.core.optim.optimizers import OptimizerConfig
from flaxformer_lite.core.optim.schedules import Cosine
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.files.data import CoNLL, JSONLines
from flaxformer_lite.files.data.reading import reader_of
from flaxformer_lite.files.records import Entities, Words
from flaxformer_lite.files.records.words import pair_of_words
from flaxformer_lite.files.text.words import units_of
from flaxformer_lite.files.tokenizers import SentencePiece
from flaxformer_lite.run import LabelledSpan, Run, load
from flaxformer_lite.run.scoring import score, scored_data
from flaxformer_lite.tasks.label.answers import WordsInWindows
from flaxformer_lite.training.loop import train
from tests.support.commands import Command
from tests.support.experiments import rows, tiny_config, use_one_device, with_train
from tests.support.text_runs import text_run, trained_on

pytestmark = pytest.mark.usefixtures("one_device")
LABELS = ("O", "B-DAY", "I-DAY", "B-NUM")
MODEL = ModelConfig(
    vocab_size=31, d_model=12, num_heads=3, d_ff=17, num_encoder_layers=1, num_decoder_layers=0, positions=Rotary(),
    residual=PRE_NORM, head=None, pooler=Pooler(token="each", activation=None, num_classes=4), dropout=DropoutRates(),
)  # fmt: skip


def sentences(number: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Sentences with a day of two words, such as "3 May", and numbers that are none."""
    rng, made = random.Random(seed), []
    for _ in range(number):
        words, labels = [], []
        for _ in range(rng.randint(1, 3)):
            words += rng.choices(["see", "on", "at", "the", "we", "go"], k=rng.randint(1, 3))
            labels += ["O"] * (len(words) - len(labels))
            day, count = [str(rng.randint(1, 30)), rng.choice(["May", "June", "July"])], [str(rng.randint(1, 999))]
            is_day = rng.random() < 0.5
            words += [*(day if is_day else count), "."]
            labels += ["B-DAY", "I-DAY", "O"] if is_day else ["B-NUM", "O"]
        made.append((words, labels))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learned days from words in JSON, evaluated on the columns of a CoNLL file."""
    place = tmp_path_factory.mktemp("labels")
    with (place / "train.jsonl").open("w") as file:
        for words, labels in sentences(400, 1):
            file.write(json.dumps({"tokens": words, "tags": [LABELS.index(label) for label in labels]}) + "\n")
    with (place / "eval.conll").open("w") as file:
        for words, labels in sentences(60, 2):
            file.write("".join(f"{word} {label}\n" for word, label in zip(words, labels, strict=True)) + "\n")
    tiny = with_train(tiny_config(), text_metrics=())
    sources = {
        "train": JSONLines(path=str(place / "train.jsonl"), record=Words(labels="tags")),
        "eval": CoNLL(path=str(place / "eval.conll")),
    }
    lengths = {"tokens_per_batch": 32 * 40, "bucket_lengths": (40,), "max_source_length": 40}
    config = dataclasses.replace(
        tiny,
        model=dataclasses.replace(MODEL, vocab_size=90, d_model=24, d_ff=48, num_encoder_layers=2),
        objective=TokenLabels(labels=LABELS),
        data=dataclasses.replace(tiny.data, **sources, tokenizer=SentencePiece(), **lengths),
        optimizer=OptimizerConfig(schedule=Cosine(peak_rate=1e-2, warmup_steps=10)),
    )
    every = dict.fromkeys(("log_every", "eval_every", "checkpoint_every"), 60)
    config = dataclasses.replace(with_train(config, steps=120, **every, best_metric="f1", keep_best=1), weights="best")
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        train(config, place / "run")
    return place / "run"


@pytest.mark.slow
def test_a_tiny_run_learns_days(folder: Path) -> None:
    best = max(row["f1"] for row in rows(folder) if row["split"] == "eval")
    assert best > 0.9
    run = load(folder)
    (found,) = run.label(["we go on 17 June ."])
    assert [(span.start, span.end, span.label) for span in found.spans] == [(9, 16, "DAY")]
    assert [found.text[word.start : word.end] for word in found.words] == ["we", "go", "on", "17", "June", "."]
    scores, _ = score(run, scored_data(run.config, "eval", None, None), {})
    assert scores["f1"] == pytest.approx(best, abs=1e-6) and scores["recall_DAY"] > 0.9 and scores["examples"] == 60


# Windows ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run() -> Run:
    """A run with random parameters and no folder, which reads 16 tokens, BOS and EOS included."""
    return text_run(MODEL, CharacterTokenizer("abcdefghijklmnop ."), objective=TokenLabels(labels=LABELS))


def test_each_word_has_the_label_of_the_window_with_the_most_context(run: Run) -> None:
    """Oracle: the model alone on every window of 14 characters that begins at a multiple of 7, or is the last."""
    rng = random.Random(3)
    apply = jax.jit(run.model.apply)
    for length in (0, 1, 13, 14, 15, 29, 97):
        text = "".join(rng.choice("abcdefghijklmnop   .") for _ in range(length))
        (found,) = run.label([text])
        assert [(word.start, word.end) for word in found.words] == units_of(text)
        last = max(length - 14, 0)
        starts = sorted({*range(0, last, 7), last})
        for start, _, label, probability in found.words:
            best = max(starts, key=lambda s, start=start: context(s, start, length) if s <= start < s + 14 else -1)
            expected = probabilities(run, apply, text[best : best + 14])[start - best]
            assert label == LABELS[int(expected.argmax())]
            assert probability == pytest.approx(float(expected.max()), rel=1e-4)


def context(start: int, place: int, length: int) -> int:
    return min(place - start if start else length, start + 13 - place if start + 14 < length else length)


def probabilities(run: Run, apply: Callable[..., Any], text: str) -> np.ndarray:
    tokenizer = run.required_tokenizers.source
    inputs = Inputs(source_tokens=jnp.array([tokenizer.with_special_tokens(tokenizer.encode(text)).tokens]))
    logits = np.asarray(apply({"params": run.params}, inputs).class_logits, np.float64)[0, 1:-1]
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def test_a_text_and_the_list_of_its_words_have_the_same_entities(run: Run) -> None:
    """Law: of a run that was trained; a word of a list has the label of its first unit. One from elsewhere reads whole words."""
    trained = trained_on(run, JSONLines(path="x", record=Words(words="w", labels="l")))
    rng = random.Random(5)
    texts = ["".join(rng.choices("abcdefghijklmnop.. ", k=20)) for _ in range(12)]
    by_text, by_words = trained.label(texts), trained.label([text.split() for text in texts])
    by_joined = trained.label([" ".join(text.split()) for text in texts])
    assert [one.spans for one in by_words] == [one.spans for one in by_joined] and any(one.spans for one in by_text)
    for words, units, text in zip(by_words, by_joined, texts, strict=True):
        assert [words.text[word.start : word.end] for word in words.words] == text.split()
        label_at = {unit.start: unit[2:] for unit in units.words}
        assert [word[2:] for word in words.words] == [label_at[word.start] for word in words.words]
    (whole,) = run.label([["ab.cd", "e"]])
    assert {(span.start, span.end) for span in whole.spans} <= {(0, 5), (0, 7), (6, 7)}


def test_what_is_measured_is_what_is_used(run: Run) -> None:
    """Oracle: F1 counted over the places in characters of the true entities and of those that label finds in the text."""
    data = dataclasses.replace(run.config.data, train=JSONLines(path="x", record=Words(words="w", labels="l")))
    config = dataclasses.replace(run.config, data=data)
    tokenizers = reader_of(config.objective, run.required_tokenizers, Path("nowhere"), config.data.longest)
    trained = dataclasses.replace(run, config=config, tokenizers=tokenizers)
    rng = random.Random(8)
    given = [["".join(rng.choices("abcp.", k=rng.randint(1, 4))) for _ in range(3)] for _ in range(60)]
    labels = [[rng.choice(["B-DAY", "O"]) for _ in words] for words in given]
    found = {
        (i, *span[:2], span.label)
        for i, one in enumerate(trained.label(list(map(" ".join, given))))
        for span in one.spans
    }
    true = set()
    for i, (words, of_words) in enumerate(zip(given, labels, strict=True)):
        stops = list(itertools.accumulate(len(word) + 1 for word in words))
        places = [(stop - 1 - len(word), stop - 1) for word, stop in zip(words, stops, strict=True)]
        true |= {(i, *place, "DAY") for place, label in zip(places, of_words, strict=True) if label == "B-DAY"}
    measured = trained.metrics([pair_of_words(*one) for one in zip(given, labels, strict=True)])
    assert measured["f1"] == pytest.approx(2 * len(true & found) / (len(true) + len(found))) and true & found


def test_entities_are_read_off_the_labels() -> None:
    """By hand: a stray I- begins an entity, a word without a token is passed over, scores are means."""
    names = ["I-DAY", "O", "B-DAY", "I-DAY", "B-DAY", "B-NUM"]
    windows = WordsInWindows.of(["a", "b", "c", "", "d", "e", "f"], [(i, i + 1) for i in range(12)], 20)
    logits = np.zeros((14, 4))
    for name, token in zip(names, windows.firsts.values(), strict=True):
        logits[1 + token, LABELS.index(name)] = 2
    found = windows.labelled([logits], 1, TokenLabels(labels=LABELS))
    assert [(span.start, span.end, span.label) for span in found.spans] == [
        (0, 1, "DAY"), (4, 8, "DAY"), (9, 10, "DAY"), (11, 12, "NUM"),
    ]  # fmt: skip
    assert found.words[3] == LabelledSpan(6, 6, "O", 0.0)
    assert found.spans[1].score == pytest.approx(np.exp(2) / (np.exp(2) + 3))


def test_words_without_a_token_and_other_runs_are_told(run: Run) -> None:
    said: list[str] = []
    run.label([["a", ""], "b"], warn=said.append, first_line=4)
    assert said == ["line 4: 1 of its words have no token of this tokenizer, and get the label O"]
    with pytest.raises(
        ValueError, match=r"^model\.pooler reads each token, so the run nowhere has no classes of whole .*: use label$"
    ):
        run.classify(["a"])
    config = dataclasses.replace(run.config, objective=Classification(classes=("a", "b")))
    with pytest.raises(ValueError, match=r"^objective\.kind is 'classification', so the run nowhere labels no words"):
        dataclasses.replace(run, config=config).label(["a"])


def test_the_command_writes_spans_and_columns(run: Run, tmp_path: Path, command: Command) -> None:
    """Law: what is printed is what Python returns, and our data sources read both forms again."""
    found, _ = run.label(["ab cd ef.", ""])
    (line, last), _ = command.on(run, "label", stdin=b"ab cd ef.\n\n")
    assert last == ""  # as for every task
    spans = json.loads(line)["spans"]
    assert spans and [(span["start"], span["end"], span["label"]) for span in spans] == [
        span[:3] for span in found.spans
    ]
    assert all(span["text"] == found.text[span["start"] : span["end"]] for span in spans)
    (tmp_path / "x.jsonl").write_text(line)
    pair = JSONLines(path=str(tmp_path / "x.jsonl"), record=Entities()).open()[0]
    assert json.loads(pair.label) == {"spans": [list(span[:3]) for span in found.spans]}

    (tmp_path / "x.conll").write_text(command("label", "run", "--format", "conll", stdin=b"ab cd ef.\n\n").out)
    pair = CoNLL(path=str(tmp_path / "x.conll")).open()[0]
    assert [label for _, _, label in json.loads(pair.label)["words"]] == [word.label for word in found.words]

    given = b'{"w": ["a", "b\\tc", "."]}\n{"w": 3}\n'
    lines = command("label", "run", "--words", "w", "--format", "conll", stdin=given).lines
    assert [line.split("\t")[0] for line in lines] == ["a", "b c", ".", "", ""]
    assert "no line has an answer" in command.ended("label", "run", "--words", "w", stdin=b'{"w": 3}\n')[1].err
    (tmp_path / "x.tsv").write_text("1\tab cd\n")
    cells = command("label", "run", tmp_path / "x.tsv", "--column", "1").out.rstrip("\n").split("\t")
    assert cells[:2] == ["1", "ab cd"] and json.loads(cells[2])["text"] == "ab cd"
    command.load(trained_on(run, run.config.data.train))
    for name in ("words.jsonl", "x.parquet"):  # an imported run was trained on no such fields
        (tmp_path / name).touch()
        assert "or of a kind that the run was trained on" in command.mistake("label", "run", tmp_path / name)


def test_the_command_reads_what_the_run_was_trained_on(run: Run, tmp_path: Path, command: Command) -> None:
    """Law: the words of each spelling get the same answers as in Python; labels are not asked; a bad text has its line."""
    given = [["ab", "cd."], ["ef"], ["a", "b"]]
    (tmp_path / "x.conll").write_text("".join("".join(f"{word} X\n" for word in words) + "\n" for words in given))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"w": words}) + "\n" for words in given))
    first, _, third = (tmp_path / "x.jsonl").read_text().splitlines()
    (tmp_path / "bad.jsonl").write_text(f'{first}\n{{"v": 1}}\n{third}\n')
    (tmp_path / "x.csv").write_text("w,l\n" + "".join(f'"{words}",\n' for words in given))
    trained = trained_on(run, JSONLines(path="nowhere.jsonl", record=Words(words="w", labels="l")))
    wanted = [[(span.start, span.end, span.label) for span in found.spans] for found in trained.label(given)]
    for name in ("x.conll", "x.jsonl", "x.csv", "bad.jsonl"):
        out, err = command.on(trained, "label", tmp_path / name)
        spans = [json.loads(line)["spans"] if line else None for line in out]
        found = [one and [(span["start"], span["end"], span["label"]) for span in one] for one in spans]
        if name == "bad.jsonl":
            assert (
                found[1] is None and f"{tmp_path / name}:2: no field w; the fields are v; its answer is empty" in err[0]
            )
            found[1] = wanted[1]
        assert found == wanted
