"""DeBERTa-v2: what its folders have of their own. Oracles: the library's tokenizer class and its training steps.

Outputs of the family are compared in test_hf.py, from fixtures.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.core.model import Inputs, Transformer
from flaxformer_lite.interop.hf.import_folder import read_folder
from flaxformer_lite.interop.hf.tokenizer_files import find_tokenizers
from tests.support.paths import FIXTURES

FOLDER = FIXTURES / "hf/deberta_v2/classification"
TEXTS = ["Der Hund  läuft\tim Park. ", " the dog, ISN'T it?", "e\u0301 [MASK]!", "", "ﬁn 12,5 日"]


def write_pieces(folder: Path, **settings: Any) -> None:
    """A SentencePiece model with DeBERTa's special tokens, and the mask behind it."""
    import sentencepiece

    lines = [f"{word} der Hund läuft im Park, the dog isn't it? 12,5" for word in ("Der", "é", "fin", "ﬁn!")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(4 * lines),
        model_prefix=str(folder / "spm"),
        vocab_size=49,
        hard_vocab_limit=False,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
        minloglevel=2,
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "DebertaV2Tokenizer", **settings}))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True, "split_by_punct": True}], ids=str)
def test_a_model_of_pieces_gives_the_ids_of_the_librarys_class(settings: dict[str, Any], tmp_path: Path) -> None:
    import transformers

    write_pieces(tmp_path, **settings)
    there = transformers.DebertaV2Tokenizer.from_pretrained(tmp_path)
    found = find_tokenizers(tmp_path, {"model_type": "deberta-v2"})
    assert found.tokenizers is not None
    here = found.tokenizers.source
    for text in TEXTS:
        assert here.encode(text) == there(text, add_special_tokens=False)["input_ids"], text
    assert (here.pad_id, here.bos_id, here.eos_id) == (there.pad_token_id, there.cls_token_id, there.sep_token_id)


@pytest.mark.slow
def test_five_steps_are_those_of_the_library() -> None:
    """Of gradient descent without dropout, with padding: each loss, and the logits after them."""
    import torch
    import transformers

    theirs = transformers.DebertaV2ForSequenceClassification.from_pretrained(FOLDER).eval()
    ours = read_folder(FOLDER)
    generator = np.random.default_rng(3)
    tokens, lengths = generator.integers(1, 43, size=(4, 13)), np.array([13, 9, 5, 12])
    mask = np.arange(13) < lengths[:, None]
    labels = np.array([0, 3, 1, 2])
    given = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(mask.astype(int))}
    optimizer, losses = torch.optim.SGD(theirs.parameters(), lr=0.05), []
    for _ in range(5):
        optimizer.zero_grad()
        out = theirs(**given, labels=torch.tensor(labels))
        out.loss.backward()
        optimizer.step()
        losses.append(float(out.loss.detach()))
    inputs = Inputs(source_tokens=jnp.asarray(tokens), source_mask=jnp.asarray(mask))

    def logits(params: Any) -> Any:
        return Transformer(ours.model).apply({"params": params}, inputs).class_logits

    def loss(params: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits(params), jnp.asarray(labels)).mean()

    step, params, found = jax.jit(jax.value_and_grad(loss)), ours.params, []
    for _ in range(5):
        value, gradient = step(params)
        params = jax.tree.map(lambda x, g: x - 0.05 * g, params, gradient)
        found.append(float(value))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    assert found[-1] < 0.9 * found[0]
    expected = theirs(**given).logits.detach().numpy()
    np.testing.assert_allclose(logits(params), expected, atol=1e-5 * np.abs(expected).max())
