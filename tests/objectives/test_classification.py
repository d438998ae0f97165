"""Rows of whole texts and their labels, worked by hand."""

import jax.numpy as jnp
import pytest

from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.model.config import ModelConfig, Pooler
from flaxformer_lite.model.inputs import Inputs, Outputs
from flaxformer_lite.objectives import Batch, Classification, Regression, SentenceEmbeddings
from flaxformer_lite.text.characters import CharacterTokenizer
from flaxformer_lite.text.special_ids import BOS, EOS, PAD
from tests.support.objectives import record

YES_NO = Classification(classes=("yes", "no"))


def labelled(source: list[int], target: list[int], label: str) -> TokenPair:
    return record(source, target)._replace(label=label)


def test_texts_and_pairs_by_hand():
    """BOS A EOS, BOS A EOS B EOS with types 0 and 1, the longer text cut first, classes by their place and numbers as they are."""
    tokenizer = CharacterTokenizer("abcdefghijklmnop")
    rows = YES_NO.make_rows(
        [labelled([], [4, 5], "no"), labelled([6], [4, 5, 7, 8], "yes"), labelled([6, 7, 8], [9, 10, 11, 12], "yes")],
        Lengths(7, 0), 0, tokenizer,
    )  # fmt: skip
    assert [row.tokens.tolist() for row in rows] == [
        [BOS, 4, 5, EOS],
        [BOS, 6, EOS, 4, 5, 7, EOS],
        [BOS, 6, 7, EOS, 9, 10, EOS],
    ]
    assert [row.types.tolist() for row in rows] == [[0] * 4, [0] * 3 + [1] * 4, [0] * 4 + [1] * 3]
    assert [row.label for row in rows] == [1, 0, 0]
    assert rows.lengths.tolist() == [[4, 0], [7, 0], [7, 0]]
    batch = YES_NO.example(rows[0], Lengths(6, 0))
    assert batch.inputs.source_tokens.tolist() == [BOS, 4, 5, EOS, PAD, PAD]
    assert batch.inputs.source_mask.tolist() == [True] * 4 + [False] * 2
    assert (batch.targets.tolist(), batch.weights.tolist()) == ([1], [1])
    (row,) = Regression().make_rows([labelled([], [4], "-2.5")], Lengths(7, 0), 0, tokenizer)
    assert Regression().example(row, Lengths(6, 0)).targets.tolist() == [-2.5]


@pytest.mark.parametrize(
    ("objective", "label", "words"),
    [
        (
            YES_NO,
            "maybe",
            r"^record 2 of the data has the label 'maybe', which is none of objective\.classes \(yes, no\)",
        ),
        (YES_NO, "", r"^record 2 of the data has the label '', "),
        (Regression(), "much", r"^record 2 of the data has the label 'much', which is no finite number"),
        (Regression(), "nan", r"which is no finite number"),
    ],
)
def test_labels_that_are_none_are_located(objective: Classification | Regression, label: str, words: str):
    good = labelled([], [4], "yes" if objective is YES_NO else "1")
    with pytest.raises(ValueError, match=words):
        objective.make_rows([good, labelled([], [4], label)], Lengths(7, 0), 0, CharacterTokenizer("abc"))


def test_the_loss_of_numbers_is_the_squared_error():
    batch = Batch(Inputs(), jnp.array([[1.0], [2.0], [9.0]]), jnp.array([[1.0], [1.0], [0.0]]))
    term = Regression().loss(Outputs(class_logits=jnp.array([[0.5], [4.0], [0.0]])), batch)["squared_error"]
    assert (float(term.sum), float(term.count)) == (4.25, 2)


@pytest.mark.parametrize(
    ("objective", "changes", "words"),
    [
        (
            YES_NO,
            {},
            r"^model\.pooler is None, but objective\.kind 'classification' needs 2: .*Pooler\(num_classes=2\)",
        ),
        (YES_NO, {"pooler": Pooler(num_classes=3)}, r"^model\.pooler is one of 3 classes, but"),
        (Regression(), {"pooler": Pooler(num_classes=2)}, r"^model\.pooler is one of 2 classes, .* needs 1"),
        (SentenceEmbeddings(), {}, r"^model\.sentence_embedding is None, but objective\.kind 'sentence_embeddings'"),
        (
            YES_NO,
            {"num_decoder_layers": 1},
            r"^the model has an encoder and a decoder .*'classification' needs a model with one of them: set one of the two to 0$",
        ),
    ],
)
def test_whole_texts_need_a_model_with_the_part(objective, changes: dict, words: str):
    with pytest.raises(ValueError, match=words):
        objective.check_model(ModelConfig(**{"vocab_size": 29, "num_decoder_layers": 0, **changes}))
