"""What every objective checks: its settings and its model."""

import dataclasses

import pytest

from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.objectives import CausalLM, Classification, MaskedLM, Seq2Seq, SpanCorruption

DECODER = ModelConfig(vocab_size=29, num_encoder_layers=0)


def test_an_objective_knows_its_model():
    both = ModelConfig(vocab_size=29)
    Seq2Seq().check_model(both)
    CausalLM().check_model(DECODER)
    for objective, model, words in (
        (CausalLM(), both, r"^model\.num_encoder_layers is 6, but .*'causal_lm'.* without encoder: set it to 0"),
        (
            Seq2Seq(),
            DECODER,
            r"^model\.num_encoder_layers is 0, but .*'seq2seq'.* with encoder: set it to at least 1",
        ),
        (CausalLM(), dataclasses.replace(DECODER, head=None), r"^model\.head is None.*'causal_lm'"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            objective.check_model(model)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (MaskedLM(mask_token=29), r"^objective\.mask_token is 29, which is no token id: .* between 0 and 28"),
        (
            SpanCorruption(first_sentinel=29, num_sentinels=2),
            r"^objective\.first_sentinel is 29, which is no token id: .* between 0 and 28",
        ),
    ],
)
def test_the_objectives_own_ids_are_ids_of_the_vocabulary(objective: MaskedLM | SpanCorruption, words: str):
    model = ModelConfig(vocab_size=29, num_decoder_layers=0 if isinstance(objective, MaskedLM) else 6)
    with pytest.raises(ValueError, match=words):
        objective.check_model(model)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MaskedLM(mask_token=3), "objective.mask_token is 3"),
        (lambda: SpanCorruption(first_sentinel=99, num_sentinels=96), "objective.num_sentinels is 96"),
        (lambda: Classification(classes=("a",)), r"objective\.classes is \('a',\): it must be at least 2"),
        (lambda: Classification(classes=("a", "a")), r"objective\.classes is \('a', 'a'\)"),
    ],
)
def test_impossible_settings_are_refused(make, words: str):
    with pytest.raises(ValueError, match=words):
        make()
