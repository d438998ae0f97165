"""Fine-tunes one encoder on six kinds of data: by `flaxformer-lite fit`, and by the reference libraries, each with its defaults.

python benchmarks/fine_tuning.py --model FOLDER --real FOLDER [--data classes …] [--seeds 3] [--json FILE] [SETTING=VALUE …]

Needs torch, transformers, accelerate, sentence-transformers and datasets, no dependencies of this package. --model is a folder of
sentence-transformers, such as all-MiniLM-L6-v2; --layers keeps its first layers. --real has the files of banking77, WNUT17 and the
English PUD treebank. SETTINGs change our training: train.epochs=5.

  classes    77 intents of customers' questions (banking77); macro-F1
  labels     entities in noisy text (WNUT17); F1 of entities, as conlleval counts them
  several    the grammar that a sentence has, of ten features (PUD); micro-F1
  number     the depth of a sentence's tree (PUD); Spearman
  answers    the subject of a verb, as a part of the sentence (PUD); F1 of words, as SQuAD's script counts them
  search     the rest of the paragraph that a sentence was taken from (docstrings of Python's library); nDCG@10

Sides, each in a process of its own, on one core:

  fit         `flaxformer-lite fit MODEL train.jsonl --eval valid.jsonl`
  trainer     the `Trainer` of transformers, for `search` that of sentence-transformers: 3 epochs of batches of 8 at 5e-5, the
              defaults of their arguments, padded to the longest text of a batch
  autotrain   the same with AutoTrain's defaults: 10 % warm-up, an evaluation each epoch, the best one is kept
  trainer+    as trainer, with as many epochs as the CPU seconds of `fit` allow

One function of this file counts a score for all sides, on texts that no side has seen. `fit` is counted as a whole command: its
imports, the import of the model, compiling, evaluations, export and report. The peers' imports are not counted.
"""

import argparse
import ast
import csv
import gzip
import hashlib
import inspect
import json
import math
import os
import pkgutil
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sides import processor, run_alone, settle

Row = dict[str, Any]
Data = dict[str, list[Row]]
"""The rows of train, valid and test."""
FEATURES = (
    "Tense=Past", "Tense=Pres", "Number=Plur", "Voice=Pass", "PronType=Rel", "NumType=Card", "Degree=Cmp", "Person=1",
    "VerbForm=Ger", "Definite=Ind",
)  # fmt: skip
"""Features of words in the Universal Dependencies: the labels that a sentence may have in `several`."""
SCORES = {
    "classes": "macro-F1",
    "labels": "F1",
    "several": "micro-F1",
    "number": "Spearman",
    "answers": "F1",
    "search": "nDCG@10",
}
MOST_TESTED = 500
LENGTH = 128
"""Tokens of the longest text of the peers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--real", type=Path, required=True)
    parser.add_argument("--data", nargs="+", choices=SCORES, default=list(SCORES))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--rows", type=int, default=1500, help="the most training rows")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        kind, side = options.side
        print(json.dumps(SIDES[side](kind, options)), flush=True)
        return
    settle(threads=1)
    print(processor(), flush=True)
    print(f"{'data, side':22}{'score':>8}{'CPU s':>8}{'steps':>8}", flush=True)
    for kind in options.data:
        compare(kind, options)


def compare(kind: str, options: argparse.Namespace) -> None:
    """Prints the scores of all sides over the seeds, and appends them to the file of --json."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in options.sides}
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as work:
            data = DATA[kind](options.real, seed, options.rows)
            for part, rows in data.items():
                lines = "".join(json.dumps(row) + "\n" for row in rows)
                Path(work, f"{part}.jsonl").write_text(lines, encoding="utf-8")
            seconds = 0.0
            for side in options.sides:
                given = [
                    "--model",
                    str(options.model),
                    "--real",
                    str(options.real),
                    "--work",
                    work,
                    "--seed",
                    str(seed),
                ]
                given += ["--seconds", str(seconds), *(["--layers", str(options.layers)] if options.layers else [])]
                words = [sys.executable, __file__, *options.settings, "--side", kind, side, *given]
                figures = run_alone(words, {"TOKENIZERS_PARALLELISM": "0"})
                if figures is None:
                    print(f"{kind}, {side} failed", flush=True)
                    continue
                seconds = seconds or figures["cpu_s"]
                found[side].append(figures)
                if options.json:
                    with open(options.json, "a", encoding="utf-8") as file:
                        facts = {"data": kind, "side": side, "seed": seed, "settings": options.settings}
                        file.write(json.dumps(facts | {"rows": len(data["train"])} | figures) + "\n")
    for side, rows in found.items():
        if rows:
            scores, cpu, steps = ([row[name] for row in rows] for name in ("score", "cpu_s", "steps"))
            spread = f" ± {statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
            print(
                f"{kind + ', ' + side:22}{statistics.mean(scores):8.3f}{statistics.mean(cpu):8.1f}{statistics.mean(steps):8.0f}"
                f"  {SCORES[kind]}{spread}",
                flush=True,
            )


# The data --------------------------------------------------------------------------------------------------------------


def divided(rows: list[Row], test: list[Row] | None, seed: int, most: int) -> Data:
    """Returns the rows in an order by the seed: a tenth for the choice of a step, a fifth for the test if there is none."""
    rows = random.Random(seed).sample(rows, len(rows))
    if test is None:
        test, rows = rows[: len(rows) // 5], rows[len(rows) // 5 :]
    held_out = min(most, len(rows)) // 9
    return {"valid": rows[:held_out], "train": rows[held_out : held_out + most], "test": test[:MOST_TESTED]}


def classes(real: Path, seed: int, most: int) -> Data:
    def read(name: str) -> list[Row]:
        with gzip.open(real / f"banking77_{name}.csv.gz", "rt", encoding="utf-8") as file:
            return [{"text": row["text"], "label": row["category"]} for row in csv.DictReader(file)]

    return divided(read("train"), read("test"), seed, most)


def labels(real: Path, seed: int, most: int) -> Data:
    def read(name: str) -> list[Row]:
        with gzip.open(real / name, "rt", encoding="utf-8") as file:
            blocks = [[line.split("\t") for line in block.splitlines()] for block in file.read().split("\n\n")]
        rows = [[(word.strip(), label.strip()) for word, label in block if word.strip()] for block in blocks]
        return [{"tokens": [word for word, _ in row], "tags": [label for _, label in row]} for row in rows if row]

    return divided(read("wnut17_wnut17train.conll.gz"), read("wnut17_emerging.test.annotated.gz"), seed, most)


def trees(real: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Yields the text of each sentence, and the ten columns of its words."""
    with gzip.open(real / "pud_English.conllu.gz", "rt", encoding="utf-8") as file:
        for block in file.read().strip().split("\n\n"):
            text = next(line[9:] for line in block.splitlines() if line.startswith("# text = "))
            words = [line.split("\t") for line in block.splitlines() if line[0].isdigit()]
            yield text, [word for word in words if word[0].isdigit()]


def several(real: Path, seed: int, most: int) -> Data:
    rows = []
    for text, words in trees(real):
        present = {feature for word in words for feature in word[5].split("|")}
        rows.append({"text": text, "labels": [feature for feature in FEATURES if feature in present]})
    return divided(rows, None, seed, most)


def number(real: Path, seed: int, most: int) -> Data:
    rows = []
    for text, words in trees(real):
        heads = {word[0]: word[6] for word in words}

        def depth(word: str, heads: Mapping[str, str] = heads) -> int:
            return 0 if word == "0" else 1 + depth(heads[word])

        rows.append({"text": text, "score": max(map(depth, heads))})
    return divided(rows, None, seed, most)


def answers(real: Path, seed: int, most: int) -> Data:
    rows: list[Row] = []
    for text, words in trees(real):
        places, at = {}, 0
        for word in words:
            at = text.index(word[1], at)
            places[word[0]] = (at, at := at + len(word[1]))
        below = {word[0]: {word[0]} for word in words}
        for _ in words:
            for word in words:
                if word[6] != "0":
                    below[word[6]] |= below[word[0]]
        verbs = {word[0]: word[1] for word in words if word[3] == "VERB"}
        for word in words:
            if word[7] != "nsubj" or word[6] not in verbs or word[3] == "PRON":
                continue
            start, stop = min(places[i][0] for i in below[word[0]]), max(places[i][1] for i in below[word[0]])
            rows.append(
                {
                    "question": f"What is the subject of {verbs[word[6]]}?",
                    "context": text,
                    "answers": {"text": [text[start:stop]], "answer_start": [start]},
                }
            )
    return divided(rows, None, seed, most)


def search(real: Path, seed: int, most: int) -> Data:
    """Sentences and the rest of their paragraphs, in the docstrings of Python's library; a paragraph is in one part alone."""
    rows: list[Row] = []
    folder = Path(inspect.getfile(os)).parent
    for module in sorted(module.name for module in pkgutil.iter_modules([str(folder)])):
        file = folder / f"{module}.py"
        if not file.is_file():
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(paragraph.split()))
                    if len(sentences) > 1 and all(len(one) >= 25 for one in sentences) and len(paragraph) <= 900:
                        rows.append({"query": sentences[0], "positive": " ".join(sentences[1:])})
    rows = list({row["positive"]: row for row in rows}.values())
    rows.sort(key=lambda row: hashlib.sha256(row["positive"].encode()).digest())
    return divided(rows, None, seed, most)


DATA: Mapping[str, Callable[[Path, int, int], Data]] = {
    "classes": classes,
    "labels": labels,
    "several": several,
    "number": number,
    "answers": answers,
    "search": search,
}


def read(options: argparse.Namespace, part: str) -> list[Row]:
    return [json.loads(line) for line in Path(options.work, f"{part}.jsonl").read_text(encoding="utf-8").splitlines()]


# The scores ------------------------------------------------------------------------------------------------------------


def f1(right: int, found: int, expected: int) -> float:
    return 2 * right / max(found + expected, 1)


def score(kind: str, rows: Sequence[Row], found: Sequence[Any]) -> float:
    """Returns the score of what was found for each row: a label, labels, a number, a text; for `search` the vectors."""
    if kind == "classes":
        true = [row["label"] for row in rows]
        names = sorted({*true})
        pairs = list(zip(found, true, strict=True))
        return statistics.mean(
            f1(pairs.count((name, name)), sum(a == name for a, _ in pairs), true.count(name)) for name in names
        )
    if kind == "labels":
        read, tagged = (
            {(i, *entity) for i, tags in enumerate(side) for entity in entities(tags)}
            for side in (found, [row["tags"] for row in rows])
        )
        return f1(len(read & tagged), len(read), len(tagged))
    if kind == "several":
        guessed, present = (
            {(i, name) for i, names in enumerate(side) for name in names}
            for side in (found, [r["labels"] for r in rows])
        )
        return f1(len(guessed & present), len(guessed), len(present))
    if kind == "number":
        return correlation(ranks(found), ranks([row["score"] for row in rows]))
    if kind == "answers":
        return statistics.mean(same_words(one, row["answers"]["text"][0]) for one, row in zip(found, rows, strict=True))
    return ndcg(found)


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Returns the first word, the word behind the last and the type of each entity. An I- behind another type begins an entity."""
    spans: list[tuple[int, int, str]] = []
    for i, tag in enumerate(tags):
        begins, _, name = tag.partition("-")
        if begins == "I" and spans and spans[-1][1:] == (i, name):
            spans[-1] = (spans[-1][0], i + 1, name)
        elif begins in ("B", "I"):
            spans.append((i, i + 1, name))
    return spans


def ranks(values: Sequence[float]) -> list[float]:
    """Returns the rank of each value; equal values share the mean of theirs."""
    ordered = sorted(values)
    first = {value: ordered.index(value) for value in {*values}}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    return statistics.correlation(a, b)


def same_words(a: str, b: str) -> float:
    """Returns SQuAD's F1 of two texts: of words in lower case, without signs and articles."""
    words = [re.sub(r"\b(a|an|the)\b", " ", re.sub(r"[^\w\s]", "", text.lower())).split() for text in (a, b)]
    common = sum(min(words[0].count(word), words[1].count(word)) for word in {*words[0]})
    return f1(common, len(words[0]), len(words[1]))


def ndcg(vectors: Sequence[Any]) -> float:
    """Returns nDCG@10 of the cosines between the first half, questions, and the second, their documents in the same order."""
    import numpy as np

    rows = np.asarray(vectors, np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    questions, documents = np.split(rows, 2)
    cosines = questions @ documents.T
    places = 1 + (cosines > np.diag(cosines)[:, None]).sum(1)
    return float(np.mean([1 / math.log2(place + 1) if place <= 10 else 0.0 for place in places]))


# This package ----------------------------------------------------------------------------------------------------------


def cut_model(options: argparse.Namespace) -> Path:
    """Returns the folder of the model, with its first layers alone if that was asked for."""
    if not options.layers:
        return Path(options.model)
    folder = Path(options.work, "model")
    if not folder.is_dir():
        from sentence_transformers import SentenceTransformer

        whole: Any = SentenceTransformer(str(options.model), device="cpu")
        layers = whole[0].auto_model.encoder
        layers.layer = layers.layer[: options.layers]
        whole[0].auto_model.config.num_hidden_layers = options.layers
        whole.save(str(folder), create_model_card=False)
    return folder


def fit(kind: str, options: argparse.Namespace) -> dict[str, float]:
    """`flaxformer-lite fit`, and the answers of its run."""
    model, run = cut_model(options), Path(options.work, "fit")
    words = [str(Path(options.work, "train.jsonl")), "--eval", str(Path(options.work, "valid.jsonl")), "-o", str(run)]
    settings = [f"--{setting}" for setting in [*options.settings, f"train.seed={options.seed}"]]
    words += ["--task", "regression"] * (kind == "number")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-m", "flaxformer_lite", "fit", str(model), *words, *settings]
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"XDG_CACHE_HOME": cache, "JAX_COMPILATION_CACHE_DIR": cache}
        subprocess.run(program, check=True, stdout=sys.stderr, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    import flaxformer_lite

    trained, rows = flaxformer_lite.load(run), read(options, "test")
    found: Any
    if kind == "labels":
        found = [[word.label for word in one.words] for one in trained.label([row["tokens"] for row in rows])]
    elif kind == "answers":
        found = [one.answer for one in trained.answer([(row["question"], row["context"]) for row in rows])]
    elif kind == "search":
        found = trained.embed([row[name] for name in ("query", "positive") for row in rows])
    else:
        predicted = trained.classify([row["text"] for row in rows])
        found = [{"classes": one.label, "several": one.labels, "number": one.score}[kind] for one in predicted]
    return {"score": score(kind, rows, found), "cpu_s": cpu, "steps": trained.config.train.steps}


# The reference libraries -----------------------------------------------------------------------------------------------


def peer(kind: str, options: argparse.Namespace, *, autotrain: bool = False, seconds: float = 0.0) -> dict[str, float]:
    """The `Trainer`, 3 epochs, or for as many CPU seconds as given."""
    import torch

    torch.set_num_threads(1)
    train = searching if kind == "search" else reading
    cut_model(options)
    train(kind, options, 2, autotrain)  # what libraries do once
    epochs = 3.0
    if seconds:
        began = time.process_time()
        train(kind, options, 20, autotrain)
        each = (time.process_time() - began) / 20
        epochs = max(1.0, seconds / each * 8 / len(read(options, "train")))
    steps = round(epochs * math.ceil(len(read(options, "train")) / 8))
    began = time.process_time()
    found = train(kind, options, steps, autotrain)
    cpu = time.process_time() - began
    return {"score": score(kind, read(options, "test"), found()), "cpu_s": cpu, "steps": steps}


def arguments(options: argparse.Namespace, steps: int, autotrain: bool) -> Row:
    """Returns arguments of the trainers: their own defaults but for what a comparison needs."""
    settings: Row = {
        "output_dir": str(options.work / "peer"), "max_steps": steps, "seed": options.seed, "use_cpu": True, "save_strategy": "no",
        "logging_strategy": "no", "report_to": "none", "disable_tqdm": True, "save_total_limit": 1,
    }  # fmt: skip
    if autotrain:
        epoch = math.ceil(len(read(options, "train")) / 8)
        settings |= {
            "warmup_steps": round(0.1 * steps),
            "eval_strategy": "steps",
            "eval_steps": epoch,
            "save_steps": epoch,
        }
        settings |= {"save_strategy": "steps", "load_best_model_at_end": True} if steps > epoch else {}
    return settings


def reading(kind: str, options: argparse.Namespace, steps: int, autotrain: bool) -> Callable[[], list[Any]]:
    """Trains a head as the library's examples do; returns what answers the test."""
    import numpy as np
    import torch
    import transformers
    from transformers import AutoTokenizer, EarlyStoppingCallback, Trainer, TrainingArguments

    transformers.set_seed(options.seed)
    parts = {part: read(options, part) for part in ("train", "valid", "test")}
    folder = str(cut_model(options))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    names: list[str] = []
    if kind == "classes":
        names = sorted({row["label"] for rows in parts.values() for row in rows})
    elif kind == "several":
        names = list(FEATURES)
    elif kind == "labels":
        names = sorted({tag for rows in parts.values() for row in rows for tag in row["tags"]})

    def row(given: Row) -> Row:
        cut = {"truncation": True, "max_length": LENGTH}
        if kind == "labels":
            encoded = tokenizer(given["tokens"], is_split_into_words=True, **cut)
            places = encoded.word_ids()
            firsts = [place is not None and place not in places[:i] for i, place in enumerate(places)]
            numbers = [
                names.index(given["tags"][p]) if first else -100 for p, first in zip(places, firsts, strict=True)
            ]
            return {**encoded, "labels": numbers}
        if kind == "answers":
            encoded = tokenizer(given["question"], given["context"], return_offsets_mapping=True, **cut)
            first, last = given["answers"]["answer_start"][0], given["answers"]["answer_start"][0]
            last += len(given["answers"]["text"][0])
            spans, sides = encoded.pop("offset_mapping"), encoded.sequence_ids()
            inside = [i for i, (a, b) in enumerate(spans) if sides[i] == 1 and a < last and b > first]
            return {**encoded, "start_positions": inside[0], "end_positions": inside[-1]}
        label: Any = names.index(given["label"]) if kind == "classes" else None
        if kind == "several":
            label = [float(name in given["labels"]) for name in names]
        if kind == "number":
            label = float(given["score"])
        return {**tokenizer(given["text"], **cut), "labels": label}

    head = {"labels": "TokenClassification", "answers": "QuestionAnswering"}.get(kind, "SequenceClassification")
    how: Row = {} if kind == "answers" else {"num_labels": len(names) or 1}
    if head == "SequenceClassification":
        how["problem_type"] = {
            "classes": "single_label_classification",
            "several": "multi_label_classification",
            "number": "regression",
        }[kind]
    model = getattr(transformers, f"AutoModelFor{head}").from_pretrained(folder, **how)
    collators = {"labels": transformers.DataCollatorForTokenClassification}
    collator = collators.get(kind, transformers.DataCollatorWithPadding)(tokenizer)
    stop = [EarlyStoppingCallback(early_stopping_patience=5, early_stopping_threshold=0.01)] if autotrain else []
    settings = arguments(options, steps, autotrain)
    trainer = Trainer(
        model=model, args=TrainingArguments(**settings), train_dataset=[row(one) for one in parts["train"]],
        eval_dataset=[row(one) for one in parts["valid"]], data_collator=collator,
        callbacks=stop if settings.get("load_best_model_at_end") else [],
    )  # fmt: skip
    trainer.train()

    def answered(given: Row) -> Any:
        with torch.no_grad():
            if kind == "labels":
                encoded = tokenizer(given["tokens"], is_split_into_words=True, truncation=True, return_tensors="pt")
                best, places = model(**encoded).logits[0].argmax(-1).tolist(), encoded.word_ids()
                firsts = {place: names[best[i]] for i, place in reversed(list(enumerate(places))) if place is not None}
                return [firsts.get(i, "O") for i in range(len(given["tokens"]))]
            if kind == "answers":
                encoded = tokenizer(
                    given["question"], given["context"], return_offsets_mapping=True, return_tensors="pt"
                )
                spans, sides = encoded.pop("offset_mapping")[0].tolist(), encoded.sequence_ids()
                out = model(**encoded)
                sums = out.start_logits[0][:, None] + out.end_logits[0][None]
                allowed = torch.tensor(
                    [
                        [i <= j < i + 30 and sides[i] == 1 == sides[j] for j in range(len(sides))]
                        for i in range(len(sides))
                    ]
                )
                i, j = divmod(int(sums.masked_fill(~allowed, -1e9).argmax()), len(sides))
                return given["context"][spans[i][0] : spans[j][1]]
            logits = model(**tokenizer(given["text"], truncation=True, return_tensors="pt")).logits[0].numpy()
        if kind == "several":
            return [names[i] for i in np.flatnonzero(logits > 0)]
        return names[int(logits.argmax())] if kind == "classes" else float(logits[0])

    model.eval()
    return lambda: [answered(one) for one in parts["test"]]


def searching(kind: str, options: argparse.Namespace, steps: int, autotrain: bool) -> Callable[[], list[Any]]:
    """Trains vectors as sentence-transformers' guide does; returns what embeds the questions of the test, then its documents."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(cut_model(options)), device="cpu")
    pairs = {
        part: Dataset.from_dict({name: [row[name] for row in read(options, part)] for name in ("query", "positive")})
        for part in ("train", "valid")
    }
    settings = SentenceTransformerTrainingArguments(**arguments(options, steps, autotrain))
    SentenceTransformerTrainer(
        model=model,
        args=settings,
        train_dataset=pairs["train"],
        eval_dataset=pairs["valid"],
        loss=MultipleNegativesRankingLoss(model),
    ).train()
    texts = [row[name] for name in ("query", "positive") for row in read(options, "test")]
    return lambda: list(model.encode(texts, show_progress_bar=False))


SIDES: Mapping[str, Callable[[str, argparse.Namespace], dict[str, float]]] = {
    "fit": fit,
    "trainer": peer,
    "autotrain": lambda kind, options: peer(kind, options, autotrain=True),
    "trainer+": lambda kind, options: peer(kind, options, seconds=options.seconds),
}


if __name__ == "__main__":
    main()
