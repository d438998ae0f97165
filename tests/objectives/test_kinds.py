"""The objective of a model from elsewhere goes by its parts."""

import pytest

from flaxformer_lite.model.config import ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.objectives import (
    CausalLM,
    Classification,
    MaskedLM,
    Objectives,
    Regression,
    SentenceEmbeddings,
    Seq2Seq,
    default_objective,
)

ENCODER, DECODER = {"num_decoder_layers": 0}, {"num_encoder_layers": 0}


@pytest.mark.parametrize(
    ("parts", "names", "objective"),
    [
        ({}, (), Seq2Seq()),
        (ENCODER, (), MaskedLM()),
        (DECODER, (), CausalLM()),
        (ENCODER | {"pooler": Pooler(num_classes=2)}, (), MaskedLM()),
        (
            ENCODER | {"pooler": Pooler(num_classes=2), "head": None},
            ("no", "yes"),
            Classification(classes=("no", "yes")),
        ),
        (DECODER | {"pooler": Pooler(num_classes=3), "head": None}, (), Classification(classes=("0", "1", "2"))),
        (ENCODER | {"pooler": Pooler(num_classes=1), "head": None}, ("score",), Regression()),
        (ENCODER | {"head": None, "sentence_embedding": SentenceEmbedding(pooling="mean")}, (), SentenceEmbeddings()),
    ],
)
def test_a_model_is_for(parts: dict, names: tuple[str, ...], objective: Objectives):
    assert default_objective(ModelConfig(vocab_size=29, **parts), names) == objective
