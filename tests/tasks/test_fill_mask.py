"""Laws of masks: each is filled by the model's probabilities at its place. Oracles: softmax in float64; by hand."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model.inputs import Inputs
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.run import Run
from tests.support.commands import Command
from tests.support.text_runs import LETTERS, text_run
from tests.support.tokenizers import gapped

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def masked() -> Run:
    return text_run(objective=MaskedLM(mask_token=30))


def test_masks_have_the_models_probabilities(masked: Run):
    """Oracle: softmax at each mask's position, in float64, sorted; texts with one, two and three masks together."""
    texts = ["ab[MASK]c", "[MASK]a[MASK]", "[MASK][MASK]x[MASK]"]
    found = masked.fill_mask(texts, 4)
    tokenizer = masked.required_tokenizers.source
    assert [len(masks) for masks in found] == [1, 2, 3]
    for text, masks in zip(texts, found, strict=True):
        ids, parts = [2], text.split("[MASK]")
        for number, part in enumerate(parts):
            ids += ([30] if number else []) + tokenizer.encode(part)
        ids.append(3)
        inputs = Inputs(source_tokens=jnp.array([ids]), token_types=jnp.zeros((1, len(ids)), jnp.int32))
        logits = np.asarray(jax.jit(masked.model.apply)({"params": masked.params}, inputs).logits[0], np.float64)
        for place, guesses in zip([i for i, token in enumerate(ids) if token == 30], masks, strict=True):
            probabilities = np.exp(logits[place]) / np.exp(logits[place]).sum()
            best = np.argsort(-probabilities)[:4]
            assert [guess.id for guess in guesses] == best.tolist()
            np.testing.assert_allclose([guess.probability for guess in guesses], probabilities[best], rtol=1e-4)
            known = [guess.token for guess in guesses if guess.id < 29]
            assert known == tokenizer.pieces([i for i in best if i < 29])


class WithMask(CharacterTokenizer):
    """A tokenizer of characters with a mask id of its own."""

    mask_id = 4


def test_a_mask_of_the_tokenizers_own_is_written_either_way():
    run = text_run(tokenizer=WithMask(["#", *LETTERS]), objective=MaskedLM())
    assert run.fill_mask(["a[MASK]b"]) == run.fill_mask(["a#b"])


def test_predicted_ids_without_a_piece_are_empty():
    """Hand-worked: all 31 ids of the model are candidates, and two have pieces; 5 lies between them."""
    run = text_run(tokenizer=gapped(), objective=MaskedLM(mask_token=30))
    ((found,),) = run.fill_mask(["b[MASK]c"], 31)
    pieces = {prediction.id: prediction.token for prediction in found}
    assert len(pieces) == 31 and {i: piece for i, piece in pieces.items() if piece} == {0: "b", 7: "c"}


def test_a_line_without_a_mask_is_skipped_with_a_warning(masked: Run, command: Command):
    """Law: the other lines have the answers that they have alone, under their own numbers."""
    lines = ["ab[MASK]c", "abc", "[MASK]" + "a" * 20 + "[MASK]", "", "[MASK]a[MASK]"]
    out, err = command.on(masked, "fill-mask", "--top", "2", stdin="\n".join(lines).encode())
    assert [line.split(" ||| ")[:2] for line in out[::2]] == [["0", "0"], ["2", "0"], ["4", "0"], ["4", "1"]]
    for i in (0, 4):
        (alone,) = masked.fill_mask([lines[i]], 2)
        found = [line.split(" ||| ") for line in out if line.startswith(f"{i} ")]
        assert [float(line[3]) for line in found] == pytest.approx([g.probability for m in alone for g in m], abs=2e-5)
    assert err == [
        "warning: stdin: line 2 has no mask: write [MASK] in place of the token to predict",
        "warning: stdin: line 3: the text has 24 tokens and was cut to 16 (data.max_source_length)",
        "warning: stdin: line 3: 1 of its masks were cut off",
    ]
    assert command.on(masked, "fill-mask", stdin=b"abc\n")[0] == []


def test_masks_in_a_column_are_filled_as_those_of_lines(masked: Run, command: Command, tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,text\n1,ab[MASK]c\n2,[MASK]d\n")
    lines = command.on(masked, "fill-mask", stdin=b"ab[MASK]c\n[MASK]d\n")[0]
    assert command.on(masked, "fill-mask", str(tmp_path / "a.csv"), "--column", "text")[0] == lines
