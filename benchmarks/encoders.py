"""Trains a search and labels of words here and by the reference libraries, from the same start in the same CPU time.

python benchmarks/encoders.py [--tables search labels] [--data FOLDER] [--shape tiny] [--steps 300 200] [--seeds 1] [--json FILE]

Needs torch, transformers, sentence-transformers and datasets, no dependencies of this package. FOLDER has the `topics/` and
`code_names/` that the lines of lab/recipes.md write. Both sides start from the same BERT of random weights, a folder of the
reference library that this package imports, and have the same rows a step, rate, cosine with warm-up, AdamW (0.9, 0.999), clipping,
decay, lengths and one thread; no dropout. Each side feeds and pads its batches as it does by default.

  search   pairs of sentence and paragraph, the others in the batch are the negatives: `SentenceEmbeddings`, and
           `MultipleNegativesRankingLoss` of sentence-transformers; nDCG@10 of held-out questions
  labels   sentences as words with BIO labels: `TokenLabels`, and the `Trainer` of transformers as run_ner.py has it; F1 of entities

One function of this file counts the score of both sides. From the texts to the trained model all CPU seconds count: tokens,
batches, steps, compiling, our checkpoint. Imports of libraries and scoring do not. This package trains twice, with the same result:
`ours` compiles, `ours again` finds its programs on the disk. The peer measures its step, then trains for the CPU seconds of either.
"""

import argparse
import dataclasses
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sides import SHAPES, Sizes, processor, run_alone, settle

LABELS = ("O", "B-CODE", "I-CODE")
ROWS = {"search": 32, "labels": 16}
"""Rows of a step, those of configs/search_topics.py and configs/label_code_names.py."""
MAX_LENGTH = {"search": 64, "labels": 96}
RATE, DECAY, WARM_UP = 1e-3, 0.01, 0.1
"""The peak rate, weight decay, and the fraction of the steps before the peak."""
VOCAB_SIZE = 2000
TEMPERATURE = 0.05
TRIAL_STEPS = 20

Scores = list[tuple[int, float, float]]
"""Steps, CPU seconds and the score of trainings."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--data", type=Path, default=Path())
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--steps", type=int, nargs=2, default=(300, 200), metavar=tuple(ROWS), help="steps of our side")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, nargs="*", default=(), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        table, side = options.side
        print(json.dumps(SIDES[side](table, options)), flush=True)
        return
    settle(threads=1)
    print(processor(), flush=True)
    rows = []
    for table in options.tables:
        print(f"{table + ', seed':14}{'steps':>8}{'CPU s':>8}  {'nDCG@10' if table == 'search' else 'F1'}")
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as work:
                for row in compare(table, seed, Path(work), options):
                    rows.append({"table": table, "seed": seed, **row})
                    print(
                        f"{row['side']:14}{row['steps']:8}{row['cpu_s']:8.1f}  {row['score']:.3f}   {seed}", flush=True
                    )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"processor": processor(), "rows": rows}, file, indent=1)


def compare(table: str, seed: int, work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the rows of both sides, each trained in a process of its own."""

    def scores(side: str, *words: str) -> Scores:
        given = ["--data", str(options.data), "--shape", options.shape, "--steps", *map(str, options.steps)]
        found = run_alone(
            [sys.executable, __file__, "--side", table, side, *given, *words], {"TOKENIZERS_PARALLELISM": "0"}
        )
        if found is None:
            sys.exit(f"{side} failed for {table}")
        return found

    own = ["--work", str(work), "--seed", str(seed)]
    scores("start", *own)
    ours = scores("ours", *own)
    theirs = scores("peer", *own, "--seconds", *(str(cpu) for _, cpu, _ in ours))
    named = [*zip(("ours", "ours again"), ours, strict=True), *(("peer", row) for row in theirs)]
    return [{"side": name, "steps": steps, "cpu_s": cpu, "score": score} for name, (steps, cpu, score) in named]


# The data, and the scores of both sides --------------------------------------------------------------------------------


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sentences(file: Path) -> list[tuple[list[str], list[str]]]:
    """Returns the words of each sentence, signs apart, with their labels."""
    return [labelled(row["text"], row["spans"]) for row in read_lines(file)]


def labelled(text: str, spans: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    words, labels = list(re.finditer(r"\w+|[^\w\s]", text)), []
    for word in words:
        starts = [span["start"] for span in spans if span["start"] <= word.start() < span["end"]]
        labels.append("O" if not starts else "B-CODE" if word.start() == starts[0] else "I-CODE")
    return [word[0] for word in words], labels


def ndcg(vectors_of: Callable[[list[str]], Any], topics: Path) -> float:
    """Returns nDCG@10 of a search by cosines, one right document a question: 1 / log2(rank + 1), 0 beyond rank 10."""
    import numpy as np

    corpus, queries = read_lines(topics / "corpus.jsonl"), read_lines(topics / "queries.jsonl")
    answers = dict(line.split("\t")[:2] for line in (topics / "qrels/test.tsv").read_text().splitlines()[1:])
    places = {row["_id"]: i for i, row in enumerate(corpus)}
    found, documents = (np.asarray(vectors_of([row["text"] for row in rows]), np.float64) for rows in (queries, corpus))
    cosines = found @ documents.T / np.linalg.norm(documents, axis=1)
    right = cosines[np.arange(len(queries)), [places[answers[row["_id"]]] for row in queries]]
    ranks = 1 + (cosines > right[:, None]).sum(1)
    return float(np.mean([1 / math.log2(rank + 1) if rank <= 10 else 0.0 for rank in ranks]))


def entity_f1(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> float:
    """Returns F1 of the entities, each of whose borders must be right. An I- behind an O begins an entity, as in conlleval."""
    found, expected = (
        {(i, *entity) for i, labels in enumerate(rows) for entity in entities(labels)} for rows in (predicted, true)
    )
    return 2 * len(found & expected) / max(len(found) + len(expected), 1)


def entities(labels: Sequence[str]) -> list[tuple[int, int]]:
    """Returns the first word of each entity and the word behind it."""
    marks = "".join(label[0] for label in labels)
    return [match.span() for match in re.finditer("[BI]I*", marks)]


# The sides -------------------------------------------------------------------------------------------------------------


def start(table: str, options: argparse.Namespace) -> str:
    """Writes a BERT of random weights with word pieces of the training's texts, by the reference library; returns its folder."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForTokenClassification, BertModel, BertTokenizer

    torch.manual_seed(options.seed)
    sizes: Sizes = SHAPES[options.shape]
    if table == "search":
        texts = [
            text for row in read_lines(options.data / "topics/train.jsonl") for text in (row["query"], row["positive"])
        ]
    else:
        texts = [row["text"] for row in read_lines(options.data / "code_names/train.jsonl")]
    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(texts, vocab_size=VOCAB_SIZE, show_progress=False)
    config = BertConfig(
        vocab_size=pieces.get_vocab_size(), hidden_size=sizes.d_model, num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.num_heads, intermediate_size=sizes.d_ff, max_position_embeddings=128,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(LABELS)), label2id={label: i for i, label in enumerate(LABELS)},
    )  # fmt: skip
    folder = str(options.work / "start")
    model = BertModel(config) if table == "search" else BertForTokenClassification(config)
    model.save_pretrained(folder)
    BertTokenizer(vocab=pieces.get_vocab(), do_lower_case=True, model_max_length=128).save_pretrained(folder)
    if table == "search":
        whole = Transformer(folder, max_seq_length=MAX_LENGTH[table])
        modules = [whole, Pooling(whole.get_embedding_dimension(), "mean"), Normalize()]
        SentenceTransformer(modules=modules, device="cpu").save(folder, create_model_card=False)
    return folder


def ours(table: str, options: argparse.Namespace) -> Scores:
    """`flaxformer_lite.train` from the imported start, twice; the second time the compiled programs are on the disk."""
    import jax

    import flaxformer_lite
    from flaxformer_lite.config import TrainConfig, load_config
    from flaxformer_lite.core.objectives import SentenceEmbeddings, TokenLabels
    from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
    from flaxformer_lite.files.data import DataConfig, JSONLines
    from flaxformer_lite.files.records import Pairs, Words
    from flaxformer_lite.files.tokenizers import FromRun
    from flaxformer_lite.interop.importing import import_hf

    jax.config.update("jax_compilation_cache_dir", str(options.work / "programs"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    base = Path(import_hf(options.work / "start", options.work / "imported"))
    steps = options.steps[list(ROWS).index(table)]
    topics, names, rows = options.data / "topics", options.data / "code_names", options.work / "rows.jsonl"
    if table == "search":
        train = JSONLines(path=str(topics / "train.jsonl"), record=Pairs(source="query", target="positive"))
    else:
        lines = [{"words": words, "labels": labels} for words, labels in sentences(names / "train.jsonl")]
        rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        train = JSONLines(path=str(rows), record=Words(words="words", labels="labels"))
    imported = load_config(str(base / "config.json"))
    config = dataclasses.replace(
        imported,
        objective=SentenceEmbeddings(temperature=TEMPERATURE) if table == "search" else TokenLabels(labels=LABELS),
        data=DataConfig(
            train=train,
            tokenizer=FromRun(path=str(base)),
            rows=ROWS[table],
            max_source_length=MAX_LENGTH[table],
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.999),
            schedule=Cosine(peak_rate=RATE, warmup_steps=round(WARM_UP * steps)),
            weight_decay=DECAY,
        ),
        train=TrainConfig(steps=steps, seed=options.seed, log_every=steps, checkpoint_every=steps, init_from=str(base)),
    )
    results: Scores = []
    for name in ("first", "again"):
        began = time.process_time()
        run = flaxformer_lite.train(config, options.work / name)
        cpu = time.process_time() - began
        if table == "search":
            score = ndcg(run.embed, topics)
        else:
            held_out = sentences(names / "valid.jsonl")
            found = run.label([words for words, _ in held_out])
            predicted = [[word.label for word in labelled.words] for labelled in found]
            score = entity_f1(predicted, [labels for _, labels in held_out])
        results.append((steps, cpu, score))
        jax.clear_caches()
    return results


def peer(table: str, options: argparse.Namespace) -> Scores:
    """The trainer of the reference library, for these CPU seconds each."""
    train = sentence_transformers if table == "search" else hugging_face
    train(options, 1, [])  # what libraries do once
    marks: list[float] = []
    began = time.process_time()
    train(options, TRIAL_STEPS, marks)
    each = (marks[-1] - marks[0]) / (TRIAL_STEPS - 1)
    before = marks[0] - began - each
    results: Scores = []
    for seconds in options.seconds:
        steps = max(1, round((seconds - before) / each))
        began = time.process_time()
        score_of = train(options, steps, marks)
        cpu = time.process_time() - began
        results.append((steps, cpu, score_of()))
    return results


def trainer_settings(table: str, options: argparse.Namespace, steps: int) -> Mapping[str, Any]:
    """Returns arguments of the reference library's trainers."""
    return {
        "output_dir": str(options.work / "peer"), "max_steps": steps, "per_device_train_batch_size": ROWS[table],
        "learning_rate": RATE, "lr_scheduler_type": "cosine", "warmup_steps": round(WARM_UP * steps), "weight_decay": DECAY,
        "seed": options.seed, "use_cpu": True, "save_strategy": "no", "logging_strategy": "no", "report_to": "none",
        "disable_tqdm": True,
    }  # fmt: skip


def watching(marks: list[float]) -> Any:
    """Returns a callback that notes the CPU seconds after each step."""
    from transformers import TrainerCallback

    class Marks(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            marks.append(time.process_time())

    return Marks()


def sentence_transformers(options: argparse.Namespace, steps: int, marks: list[float]) -> Callable[[], float]:
    """Trains as sentence-transformers' guide does, without two equal texts in a batch; returns what scores the model."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    torch.set_num_threads(1)
    model = SentenceTransformer(str(options.work / "start"), device="cpu")
    rows = read_lines(options.data / "topics/train.jsonl")
    pairs = Dataset.from_dict({name: [row[name] for row in rows] for name in ("query", "positive")})
    settings = SentenceTransformerTrainingArguments(
        **trainer_settings("search", options, steps), batch_sampler="no_duplicates"
    )
    loss = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    SentenceTransformerTrainer(
        model=model, args=settings, train_dataset=pairs, loss=loss, callbacks=[watching(marks)]
    ).train()
    return lambda: ndcg(lambda texts: model.encode(texts, show_progress_bar=False), options.data / "topics")


def hugging_face(options: argparse.Namespace, steps: int, marks: list[float]) -> Callable[[], float]:
    """Trains as run_ner.py does: the first piece of a word has its label; returns what scores the model."""
    import torch
    from transformers import (
        AutoModelForTokenClassification,
        AutoTokenizer,
        DataCollatorForTokenClassification,
        Trainer,
        TrainingArguments,
    )

    torch.set_num_threads(1)
    model = AutoModelForTokenClassification.from_pretrained(options.work / "start")
    tokenizer = AutoTokenizer.from_pretrained(options.work / "start")

    def row(words: list[str], labels: list[str]) -> dict[str, list[int]]:
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=MAX_LENGTH["labels"])
        numbers, places = [LABELS.index(label) for label in labels], encoded.word_ids()
        firsts = [place is not None and place not in places[:i] for i, place in enumerate(places)]
        return {
            **encoded,
            "labels": [numbers[place] if first else -100 for place, first in zip(places, firsts, strict=True)],
        }

    rows = [row(*sentence) for sentence in sentences(options.data / "code_names/train.jsonl")]
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**trainer_settings("labels", options, steps)),
        train_dataset=rows,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        callbacks=[watching(marks)],
    )
    trainer.train()

    def score() -> float:
        predicted, held_out = [], sentences(options.data / "code_names/valid.jsonl")
        for words, labels in held_out:
            one = row(words, labels)
            ids = {name: torch.tensor([one[name]]) for name in ("input_ids", "attention_mask")}
            with torch.no_grad():
                best = model.eval()(**ids).logits[0].argmax(-1).tolist()
            read = [LABELS[label] for label, true in zip(best, one["labels"], strict=True) if true != -100]
            predicted.append(read + ["O"] * (len(words) - len(read)))
        return entity_f1(predicted, [labels for _, labels in held_out])

    return score


SIDES: Mapping[str, Callable[[str, argparse.Namespace], Any]] = {"start": start, "ours": ours, "peer": peer}


if __name__ == "__main__":
    main()
