"""Oracle: what Hugging Face's library generates with its own tiny models (tests/fixtures/hf), greedily and with four beams."""

import dataclasses

import jax
import numpy as np
import pytest

from flaxformer_lite.core.model.transformer import Transformer
from flaxformer_lite.core.search.decoder import Decoder
from tests.support.hf_folders import DATA, fixture, imported, refused


def generating() -> list:
    """Every fixture that generates."""
    files = [file for file in sorted(DATA.glob("*/*/io.npz")) if "gen/greedy" in np.load(file).files]
    return [str(file.parent.relative_to(DATA)) for file in files]


@pytest.mark.slow
@pytest.mark.parametrize("label", generating())
def test_the_same_tokens_are_generated(label: str) -> None:
    """Every token, also of beams, and the beams' scores."""
    if refused(label):
        return
    found, (arrays, _) = imported(label), fixture(label)
    shown = arrays["gen/attention_mask"].astype(bool)
    prompts = [ids[own].tolist() for ids, own in zip(arrays["gen/input_ids"], shown, strict=True)]
    for name, beam_size in (("greedy", 1), ("beam4", 4)):
        if f"gen/{name}" not in arrays:
            continue
        limit = arrays[f"gen/{name}"].shape[1]
        settings = dataclasses.replace(found.decode, beam_size=beam_size, num_hypotheses=1, max_new_tokens=limit)
        decoder = Decoder(Transformer(found.model), settings)
        answers = [answer[0] for answer in decoder.generate({"params": found.params}, prompts)]
        ends = {*settings.eos_ids}
        for row, answer in enumerate(answers):
            expected = [token for token in arrays[f"gen/{name}"][row].tolist() if token >= 0]
            expected = expected[:-1] if expected[-1] in ends else expected
            assert answer.tokens == expected, f"{name}, row {row}"
        if beam_size > 1:
            np.testing.assert_allclose([a.score for a in answers], arrays[f"gen/{name}_score"], atol=1e-4)
    jax.clear_caches()
