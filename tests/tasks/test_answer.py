"""Answers to questions. Oracles: all places of all windows one by one, by the model alone; SQuAD's figures by hand."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model.config import PRE_NORM, ModelConfig
from flaxformer_lite.core.model.layers import DropoutRates
from flaxformer_lite.core.model.positions import Rotary
from flaxformer_lite.core.objectives import AnswerSpans
from flaxformer_lite.core.optim.optimizers import OptimizerConfig
from flaxformer_lite.core.optim.schedules import Cosine
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.text.characters import Characters, CharacterTokenizer
from flaxformer_lite.core.text.special_ids import BOS, EOS
from flaxformer_lite.files.data import JSONLines
from flaxformer_lite.files.records import Questions
from flaxformer_lite.run import FoundAnswer, Run, load, write_run
from flaxformer_lite.tasks.answer.answers import Answer
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.commands import Command
from tests.support.experiments import tiny_config
from tests.support.served import as_run

pytestmark = pytest.mark.usefixtures("one_device")
SIGNS = "abcdefghijklmnopqrstuvw xyz.?0123456789"
MODEL = ModelConfig(
    vocab_size=4 + len(SIGNS), d_model=12, num_heads=3, d_ff=17, num_encoder_layers=1, num_decoder_layers=0,
    positions=Rotary(), residual=PRE_NORM, head=None, dropout=DropoutRates(), num_token_types=2,
    pooler=Pooler(token="each", activation=None, num_classes=2),
)  # fmt: skip


def random_run(objective: AnswerSpans, folder: Path) -> Run:
    tiny = tiny_config()
    data = dataclasses.replace(tiny.data, train=None, eval=None, max_source_length=17, max_target_length=17)
    training = dataclasses.replace(tiny.train, text_metrics=())
    config = dataclasses.replace(tiny, model=MODEL, objective=objective, data=data, train=training)
    return as_run(config, CharacterTokenizer(SIGNS), folder)


def best_by_hand(run: Run, question: str, text: str) -> FoundAnswer:
    """The best of all places of all windows, which begin every 6 characters and have 9 each, with the share of the 20 best."""
    objective: Any = run.config.objective
    ids, asked = run.tokenizer.encode(text), run.tokenizer.encode(question)
    scores, none = dict[tuple[int, int], float](), np.inf
    for start in range(0, max(len(ids) - 3, 1), 6):
        part = ids[start : start + 9]
        row, types = [BOS, *asked, EOS, *part, EOS], [0] * (len(asked) + 2) + [1] * (len(part) + 1)
        z = np.asarray(run.forward(input_ids=[row], token_type_ids=[types]).logits, np.float64)[0]
        none = min(none, z[0].sum())
        for i in range(len(part)):
            for j in range(i, min(i + objective.longest_answer, len(part))):
                place, before = (start + i, start + j + 1), len(asked) + 2
                scores[place] = max(scores.get(place, -np.inf), z[before + i, 0] + z[before + j, 1])
    best = sorted(((score, place) for place, score in scores.items()), reverse=True)[:20]
    powers = np.exp([score for score, _ in best] + [none] * objective.unanswerable)
    if objective.unanswerable and none - best[0][0] > objective.threshold:
        return FoundAnswer("", 0, 0, powers[-1] / powers.sum())
    start, stop = best[0][1]
    answer = text[start:stop].strip()
    start = text.index(answer, start)
    return FoundAnswer(answer, start, start + len(answer), powers[0] / powers.sum())


@pytest.mark.parametrize("threshold", [None, -3.0, 0.0])
def test_an_answer_is_the_best_of_all_windows(threshold: float | None, tmp_path: Path):
    """Texts of up to six windows, together and each alone."""
    objective = AnswerSpans(overlap=3, longest_answer=4)
    if threshold is not None:
        objective = dataclasses.replace(objective, unanswerable=True, threshold=threshold)
    run, rng = random_run(objective, tmp_path), random.Random(3)
    asked = [("who?a", "".join(rng.choices(SIGNS, k=length))) for length in (36, 1, 9, 10, 33)]
    found, expected = run.answer(asked), [best_by_hand(run, *one) for one in asked]
    for one, other in zip(found, expected, strict=True):
        assert one[:3] == other[:3] and one.score == pytest.approx(other.score, rel=1e-4)
    assert [one[:3] for one in run.answer(asked[:1])] == [found[0][:3]]
    assert 0 < sum(not one.answer for one in found) < len(found) or threshold != 0.0
    (nothing,) = run.answer([("who?a", "")])
    assert nothing == FoundAnswer("", 0, 0, 0.0 if threshold is None else 1.0)


def test_a_long_question_is_cut_and_another_run_refused(tmp_path: Path):
    run, said = random_run(AnswerSpans(), tmp_path), []
    run.answer([("a" * 9, "b")], warn=said.append)
    assert said == ["line 1: the question has 9 tokens, and the first 7 are read"]
    with pytest.raises(ValueError, match=r"^objective\.kind is 'answer_spans', so the run .* labels no words"):
        run.label(["a"])


def test_an_imported_run_answers_a_file_of_squad(tmp_path: Path, command: Command):
    """A run without data: the questions of the published form, and lines of text, have the same answers."""
    run = random_run(AnswerSpans(), tmp_path)
    write_run(RunFolder(tmp_path / "run"), run.config, 0, run.params, "a test", tokenizers=run.tokenizers)
    texts = ["abc is 12.", "the w is 7"]
    questions = [{"context": text, "qas": [{"question": "who?", "answers": []}]} for text in texts]
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"paragraphs": questions}]}))
    out = command("answer", tmp_path / "run", tmp_path / "dev.json").lines
    assert out == [f"{one.answer}\t{one.score:.6f}" for one in run.answer([("who?", text) for text in texts])]
    asked = "".join(f"who?\t{text}\n" for text in texts)
    assert command("answer", tmp_path / "run", stdin=asked.encode()).lines == out


@pytest.mark.parametrize(
    ("right", "found", "exact", "f1"),
    [
        (["Warsaw"], "the warsaw!", 1, 1),
        (["in the city of Warsaw", "Paris"], "Warsaw city", 0, 2 * 2 / (2 + 4)),
        (["a b b"], "b b c", 0, 2 * 2 / (3 + 2)),
        (["anatomy"], "an atomy", 0, 0),
        ([], "", 1, 1),
        ([], "Warsaw", 0, 0),
        (["Warsaw"], "", 0, 0),
        (["the", "Poland"], "", 0, 0),
        (["the"], "", 1, 1),
    ],
)  # fmt: skip
def test_figures_by_hand(right: list[str], found: str, exact: float, f1: float):
    """By the definition: words in lower case without punctuation and articles; the best of the right answers that have words."""
    text = "".join(f"{one} " for one in right)
    starts = [sum(len(one) + 1 for one in right[:i]) for i in range(len(right))]
    label = json.dumps([[start, start + len(one)] for start, one in zip(starts, right, strict=True)])
    figures = Answer().figures([Pair("q", text, label)], [found])
    assert figures == pytest.approx({"answer_exact": exact, "answer_f1": f1})
    figures = Answer().figures([Pair("q", text, label), Pair("q", "a b", "[[2, 3]]")], [found, "b"])
    assert figures["answer_f1"] == pytest.approx((f1 + 1) / 2)


# A run that learns ------------------------------------------------------------------------------------------------------


def records(number: int, seed: int) -> list[dict[str, Any]]:
    """Texts such as "ab 12 b xyz a": n? asks for the number, w? for the word of x, y and z; the text may lack it."""
    rng, made = random.Random(seed), []
    for _ in range(number):
        asked, lacks = rng.choice("nw"), rng.random() < 0.2
        parts = {"n": str(rng.randint(10, 999)), "w": "".join(rng.choices("xyz", k=rng.randint(2, 4)))}
        answer = parts.pop(asked) if lacks else parts[asked]
        words = [*parts.values(), *("".join(rng.choices("abc", k=rng.randint(1, 3))) for _ in range(4))]
        rng.shuffle(words)
        text = " ".join(words)
        answers = [] if lacks else [{"text": answer, "answer_start": text.index(answer)}]
        made.append({"question": f"{asked}?", "context": text, "answers": answers})
    return made


@pytest.mark.slow
def test_a_tiny_run_learns_to_answer(tmp_path: Path, command: Command):
    for name, number in (("train", 600), ("eval", 60)):
        rows = records(number, len(name))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny = tiny_config()
    source = {name: JSONLines(path=str(tmp_path / f"{name}.jsonl"), record=Questions()) for name in ("train", "eval")}
    config = dataclasses.replace(
        tiny,
        model=dataclasses.replace(MODEL, d_model=36, d_ff=72, num_encoder_layers=2),
        objective=AnswerSpans(unanswerable=True),
        data=dataclasses.replace(
            tiny.data, **source, tokenizer=Characters(), tokens_per_batch=32 * 32, bucket_lengths=(32,), max_source_length=32
        ),
        optimizer=OptimizerConfig(schedule=Cosine(peak_rate=1e-2, warmup_steps=20)),
        train=dataclasses.replace(
            tiny.train, steps=120, log_every=60, eval_every=60, checkpoint_every=60, text_metrics=(),
            best_metric="answer_f1", keep_best=1,
        ),
        weights="best",
    )  # fmt: skip
    train(config, tmp_path / "run")
    run = load(tmp_path / "run")
    rows = records(60, len("eval"))
    found = run.answer([(row["question"], row["context"]) for row in rows])
    right = [[one["text"] for one in row["answers"]] or [""] for row in rows]
    exact = np.mean([one.answer in texts for one, texts in zip(found, right, strict=True)])
    assert exact > 0.9
    assert all(row["context"][one.start : one.stop] == one.answer for row, one in zip(rows, found, strict=True))
    assert f"{exact:.4g}"[:5] in "".join(command("evaluate", tmp_path / "run"))
    lines = command("answer", tmp_path / "run", tmp_path / "eval.jsonl").lines
    assert [line.split("\t")[0] for line in lines] == [one.answer for one in found]
    asked = "".join(f"{row['question']}\t{row['context']}\n" for row in rows).encode()
    shown = map(json.loads, command("answer", tmp_path / "run", "--format", "jsonl", stdin=asked).lines)
    assert [(one["answer"], one["start"], one["stop"]) for one in shown] == [one[:3] for one in found]
