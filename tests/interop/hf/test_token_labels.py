"""Oracle: transformers, with its pipeline for tokens (first pieces), and the labels and the loss of its example `run_ner.py`."""

import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.objectives import TokenLabels
from flaxformer_lite.files.data.reading import reader_of, tokenize
from flaxformer_lite.files.records.words import pair_of_words
from tests.support import needs
from tests.support.objectives import example

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, ".", ",", *(f"##{letter}" for letter in LETTERS)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A random BERT for tokens with its tokenizer, and their folder."""
    import torch
    import transformers

    torch.manual_seed(5)
    tokenizer = transformers.BertTokenizerFast(vocab={piece: i for i, piece in enumerate(PIECES)})
    config = transformers.BertConfig(
        vocab_size=len(PIECES), hidden_size=28, num_hidden_layers=2, num_attention_heads=4, intermediate_size=37,
        max_position_embeddings=53, initializer_range=0.7, id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )  # fmt: skip
    model = transformers.BertForTokenClassification(config).eval()
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer, folder


@pytest.fixture(scope="module")
def run(library: tuple[Any, Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return flaxformer_lite.load(flaxformer_lite.import_hf(library[2], tmp_path_factory.mktemp("ours") / "run"))


def sentences(number: int) -> list[list[str]]:
    rng = random.Random(7)
    letters = LETTERS + "éÖ"
    return [
        ["".join(rng.choices(letters, k=rng.randint(1, 5))) for _ in range(rng.randint(1, 9))] for _ in range(number)
    ]


@needs.transformers
@pytest.mark.slow
def test_words_have_the_labels_of_the_librarys_pipeline(library: tuple[Any, Any, Path], run: Any) -> None:
    import transformers

    model, tokenizer, _ = library
    assert run.config.objective == TokenLabels(labels=LABELS)
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first", ignore_labels=[]
    )
    texts = [" ".join(words) + random.Random(len(words)).choice([".", ", b", ""]) for words in sentences(31)]
    for text, found in zip(texts, run.label(texts, warn=lambda line: None), strict=True):
        groups = iter(pipeline(text))
        expected = next(groups)
        for word in found.words:  # the library joins neighbours of a type
            if word.start >= expected["end"]:
                expected = next(groups)
            assert expected["start"] <= word.start and word.end <= expected["end"]
            assert word.label.removeprefix("B-").removeprefix("I-") == expected["entity_group"]
        assert next(groups, None) is None


@needs.transformers
@pytest.mark.slow
@pytest.mark.parametrize("pieces", ["first", "all"])
def test_losses_and_labels_are_those_of_the_librarys_example(
    library: tuple[Any, Any, Path], run: Any, pieces: Any
) -> None:
    import torch

    model, tokenizer, folder = library
    objective, rng = TokenLabels(labels=LABELS, pieces=pieces), random.Random(3)
    reader = reader_of(objective, run.required_tokenizers, folder, Lengths(47, 0))
    for words in sentences(11):
        labels = rng.choices(range(len(LABELS)), k=len(words))
        encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=47)
        expected, before = [], None
        for word in encoded.word_ids():
            if word is None or (word == before and pieces == "first"):
                expected.append(-100)
            else:
                is_begin = word == before and labels[word] in (1, 3)  # B- of a further piece becomes I-
                expected.append(labels[word] + 1 if is_begin else labels[word])
            before = word
        rows = objective.make_rows(tokenize([pair_of_words(words, labels)], reader), Lengths(47, 0), 0, reader.target)
        batch = example(objective, rows[0], Lengths(len(expected), 0))
        assert batch.inputs.source_tokens.tolist() == encoded["input_ids"]
        assert np.where(batch.weights > 0, batch.targets, -100).tolist() == expected
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([encoded["input_ids"]]), labels=torch.tensor([expected])).loss
        logits = jnp.asarray(run.forward(input_ids=[encoded["input_ids"]]).class_logits)
        term = objective.loss(Outputs(class_logits=logits), jax.tree.map(lambda x: jnp.asarray(x)[None], batch))
        assert term["cross_entropy"].mean == pytest.approx(float(loss), rel=1e-5)
