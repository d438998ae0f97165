"""Laws: the choice for a model from elsewhere; no code outside core/objectives/ asks for a class."""

import ast
import typing

import jax
import jax.numpy as jnp
import pytest

from flaxformer_lite.core import objectives
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.objectives import Batch, CausalLM, MaskedLM, SentenceEmbeddings, Seq2Seq
from flaxformer_lite.core.objectives.classification import Classification, Regression
from flaxformer_lite.core.objectives.kinds import Objectives, default_objective
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding
from flaxformer_lite.core.text.characters import CharacterTokenizer
from tests.support.objectives import record, theirs, unmasked
from tests.support.sources import FILES, PACKAGE, tree_of


def test_an_objective_that_compares_rows_says_what_it_reads_of_each():
    class Comparing(Seq2Seq):
        rows_independent = False

    with pytest.raises(
        NotImplementedError, match=r"Comparing\.rows_independent is False: define `compared` and `joined`"
    ):
        Comparing().compared(Outputs(), Batch(Inputs(), jnp.zeros((1, 1), int), jnp.ones((1, 1))))


# The objective of a model from elsewhere ------------------------------------------------------------------------------


ENCODER_PARTS, DECODER_PARTS = {"num_decoder_layers": 0}, {"num_encoder_layers": 0}


@pytest.mark.parametrize(
    ("parts", "names", "objective"),
    [
        ({}, (), Seq2Seq()),
        (ENCODER_PARTS, (), MaskedLM()),
        (DECODER_PARTS, (), CausalLM()),
        (ENCODER_PARTS | {"pooler": Pooler(num_classes=2)}, (), MaskedLM()),
        (
            ENCODER_PARTS | {"pooler": Pooler(num_classes=2), "head": None},
            ("no", "yes"),
            Classification(classes=("no", "yes")),
        ),
        (DECODER_PARTS | {"pooler": Pooler(num_classes=3), "head": None}, (), Classification(classes=("0", "1", "2"))),
        (ENCODER_PARTS | {"pooler": Pooler(num_classes=1), "head": None}, ("score",), Regression()),
        (
            ENCODER_PARTS | {"head": None, "sentence_embedding": SentenceEmbedding(pooling="mean")},
            (),
            SentenceEmbeddings(),
        ),
        (ENCODER_PARTS | {"sentence_embedding": SentenceEmbedding()}, (), SentenceEmbeddings()),
    ],
)
def test_a_model_is_for(parts: dict, names: tuple[str, ...], objective: Objectives):
    assert default_objective(ModelConfig(vocab_size=29, **parts), names) == objective


# Special ids of other tokenizers --------------------------------------------------------------------------------------


class Theirs(CharacterTokenizer):
    """Characters with other special ids; the first four ids are free."""

    pad_id, unk_id, bos_id, eos_id, mask_id = 20, 21, 22, 23, 24


class NoBeginning(Theirs):
    """One that begins no text, as T5's."""

    bos_id = None


def test_rows_have_the_tokenizers_own_special_ids():
    tokenizer, plain = Theirs("abcdefghijklmnop"), NoBeginning("abcdefghijklmnop")
    text = record([], [4, 5, 6])
    batch = theirs(CausalLM(), [text], tokenizer)
    assert batch.inputs.target_tokens.tolist() == [[22, 4, 5, 6, 20, 20, 20, 20, 20]]
    assert batch.targets.tolist() == [[4, 5, 6, 23, 20, 20, 20, 20, 20]]
    assert theirs(CausalLM(), [text], plain).inputs.target_tokens.tolist() == [[4, 5, 6] + [20] * 6]
    batch = theirs(Seq2Seq(), [record([7, 8], [4, 5])], plain, start_id=20)
    assert batch.inputs.source_tokens.tolist() == [[7, 8, 23] + [20] * 6]
    assert batch.inputs.target_tokens.tolist() == [[20, 4, 5] + [20] * 6]
    assert batch.targets.tolist() == [[4, 5, 23] + [20] * 6]
    objective = MaskedLM(mask_rate=0.9)
    batch = theirs(objective, [record([], [4, 5, 6, 7, 8])], tokenizer)
    assert unmasked(jax.tree.map(lambda x: x[0], batch)) == [22, 4, 5, 6, 7, 8, 23, 20, 20]
    assert 24 in batch.inputs.source_tokens
    batch = theirs(objective, [record([], [4, 5, 6, 7, 8])], plain)
    assert unmasked(jax.tree.map(lambda x: x[0], batch)) == [4, 5, 6, 7, 8, 23, 20, 20, 20]


# No code outside asks for a class -------------------------------------------------------------------------------------


CLASSES = {base.__name__ for kind in typing.get_args(objectives.Objectives) for base in kind.__mro__[:-1]}
OUTSIDE = [path for path in FILES if (PACKAGE / "core" / "objectives") not in path.parents]


def class_checks(tree: ast.AST) -> list[int]:
    """Returns the lines that branch on an objective's class: isinstance, issubclass, match, or comparing types or kinds."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            where: list[ast.AST] = node.args[1:]
        elif isinstance(node, ast.MatchClass):
            where = [node.cls]
        elif isinstance(node, ast.Compare):
            where = [node.left, *node.comparators]
        else:
            continue
        names = {name for part in where for inner in ast.walk(part) if (name := name_of(inner))}
        if names & CLASSES or any(ast.unparse(part).endswith("objective.kind") for part in where):
            lines.append(node.lineno)
    return lines


def name_of(node: ast.AST) -> str:
    return getattr(node, "id", "") or getattr(node, "attr", "")


def test_no_code_outside_asks_for_an_objectives_class():
    checks = {str(path.relative_to(PACKAGE)): class_checks(tree_of(path)) for path in OUTSIDE}
    assert checks and not {path: lines for path, lines in checks.items() if lines}
