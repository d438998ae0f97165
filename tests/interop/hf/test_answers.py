"""Oracle: transformers' classes that find answers: both logits of each token, and the folder read again."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.model import ModelConfig, Pooler, Transformer
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.objectives import AnswerSpans
from flaxformer_lite.core.predictions.forward import arguments, forward
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.files.data.reading import tokenize
from flaxformer_lite.files.records.questions import QuestionTokenizers
from flaxformer_lite.interop import FAMILIES, Imported, read_folder
from flaxformer_lite.interop.differences import check_same
from flaxformer_lite.interop.exporting import export, write_hf
from flaxformer_lite.interop.hf.card import About
from flaxformer_lite.interop.hf.family import ANSWERS, ClassNames
from flaxformer_lite.interop.hf.folder import write_folder
from flaxformer_lite.interop.importing import objective
from tests.support import needs
from tests.support.hf_folders import config_of, random_params
from tests.support.limits import assert_close
from tests.support.objectives import example

CLASSES = {
    "bert": "BertForQuestionAnswering",
    "roberta": "RobertaForQuestionAnswering",
    "xlm-roberta": "XLMRobertaForQuestionAnswering",
    "distilbert": "DistilBertForQuestionAnswering",
    "modernbert": "ModernBertForQuestionAnswering",
    "electra": "ElectraForQuestionAnswering",
    "albert": "AlbertForQuestionAnswering",
    "mpnet": "MPNetForQuestionAnswering",
    "megatron-bert": "MegatronBertForQuestionAnswering",
    "roformer": "RoFormerForQuestionAnswering",
    "data2vec-text": "Data2VecTextForQuestionAnswering",
    "roberta-prelayernorm": "RobertaPreLayerNormForQuestionAnswering",
    "jina_embeddings_v3": "JinaEmbeddingsV3ForQuestionAnswering",
    "gpt2": "GPT2ForQuestionAnswering",
    "llama": "LlamaForQuestionAnswering",
}

SINES = "roformer.encoder.embed_positions.weight"
"""A table that RoFormer's files hold, and that the library computes where it is absent."""


def small(model_type: str) -> ModelConfig:
    """A model of the family with a head that finds answers."""
    template = FAMILIES[model_type].template
    [stack] = template.num_layers
    form: dict[str, Any] = {"activation": None} if model_type != "modernbert" else {}
    return dataclasses.replace(
        template,
        vocab_size=43,
        d_model=24,
        num_heads=4,
        d_ff=37,
        **{f"num_{stack}_layers": 2},
        head=None,
        pooler=dataclasses.replace(template.pooler or Pooler(), token="each", num_classes=2, **form),
    )


@pytest.mark.parametrize("model_type", CLASSES)
def test_a_head_that_finds_answers_goes_out_and_in(model_type: str, tmp_path: Path) -> None:
    """By the objective, which token labels of two classes do not have: the model is the same."""
    model = small(model_type)
    params = random_params(model)
    ids = DecodeConfig(pad_id=1, bos_id=0, eos_ids=(2,))  # RoBERTa's positions count from the padding id
    config = dataclasses.replace(config_of(model), objective=AnswerSpans(), decode=ids)
    (tmp_path / "files").mkdir()
    about = About("model", 5, ())
    write_hf(config, params, {}, tmp_path / "files", model_type, tmp_path / "out", about)
    found = read_folder(tmp_path / "out")
    assert found.architecture == CLASSES[model_type] == found.config["architectures"][0]
    assert isinstance(objective(found, None), AnswerSpans) and not found.skipped
    check_same(found.model, model)
    one, other = (export(model, x, found.family, heads=(ANSWERS,)).tensors for x in (found.params, params))
    assert one.keys() == other.keys() and all((one[name] == x).all() for name, x in other.items())
    labels = export(model, params, found.family)
    assert labels.config["architectures"] == [CLASSES[model_type].replace("QuestionAnswering", "TokenClassification")]


def test_a_family_without_such_a_class_is_refused() -> None:
    """The library has no class of EuroBERT that finds answers."""
    form = Pooler(token="each", activation=None, num_classes=2)
    model = dataclasses.replace(small("eurobert"), num_heads=2, pooler=form)
    params = random_params(model)
    assert export(model, params, FAMILIES["eurobert"]).config["architectures"] == ["EuroBertForTokenClassification"]
    with pytest.raises(
        ValueError, match=r"^eurobert has no model like this one: objective\.kind is answer_spans, for which"
    ):
        export(model, params, FAMILIES["eurobert"], heads=(ANSWERS,))


@needs.transformers
@pytest.mark.slow
def test_every_class_has_its_prefix() -> None:
    """The library's classes that find answers have prefixes of their own, of many decoders the one of its first releases."""
    import transformers

    for family in FAMILIES.values():
        name = f"{family.base.removesuffix('Model')}ForQuestionAnswering"
        classes = next(iter(getattr(family.read_heads, "args", ())), None)
        if isinstance(classes, ClassNames) and classes.of_answers:
            prefix = getattr(transformers, name).base_model_prefix + "."
            assert prefix == (family.answers_prefix or family.prefix), name


@needs.transformers
@pytest.mark.slow
@pytest.mark.parametrize("model_type", CLASSES)
def test_logits_are_those_of_the_library_both_ways(model_type: str, tmp_path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(7)
    kind = getattr(transformers, CLASSES[model_type])
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
    if model_type == "distilbert":
        sizes = {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}
    if model_type in ("albert", "electra"):
        sizes["embedding_size"] = 9
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    config = kind.config_class(
        vocab_size=43, max_position_embeddings=53, initializer_range=0.3, **sizes, **ids, cls_token_id=0, sep_token_id=2
    )
    theirs = kind(config).eval()
    for name, tensor in theirs.named_parameters():
        if name.endswith(("bias", "norm.weight", "LayerNorm.weight")):
            tensor.data += 0.3 * torch.randn_like(tensor)
    theirs.save_pretrained(tmp_path / "theirs")
    given = {"input_ids": torch.randint(3, 43, (3, 31)), "attention_mask": torch.ones(3, 31, dtype=torch.long)}
    given["attention_mask"][1, 20:] = 0
    given["input_ids"][1, 20:] = 1
    if model_type == "bert":
        given["token_type_ids"] = (torch.arange(31) > 11).long().expand(3, 31)

    def logits_of(model: Any) -> np.ndarray:
        with torch.no_grad():
            found = model(**given)
        return torch.stack([found.start_logits, found.end_logits], -1).numpy()

    def ours(found: Imported) -> np.ndarray:
        arrays = {name: np.asarray(x) for name, x in given.items()}
        assert arrays.keys() <= {*arguments(found.model)}
        answer = forward(Transformer(found.model), {"params": found.params}, found.decode, **arrays)
        return np.asarray(answer.class_logits if answer.class_logits is not None else answer.logits)

    expected, mask = logits_of(theirs), np.asarray(given["attention_mask"], bool)
    found = read_folder(tmp_path / "theirs")
    assert found.architecture == CLASSES[model_type] and {*found.skipped} <= {SINES}
    assert np.abs(expected[mask]).max() > 0.5
    assert_close(ours(found)[mask], expected[mask])
    exported = export(found.model, found.params, found.family, heads=(ANSWERS,))
    write_folder(tmp_path / "ours", {"config.json": ids | exported.config}, exported.tensors, tmp_path / "theirs")
    again, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert {*info["missing_keys"]} <= {SINES} and not info["unexpected_keys"]
    assert np.abs(logits_of(again.eval()) - expected)[mask].max() < 1e-6


@needs.transformers
@pytest.mark.slow
def test_windows_and_losses_are_those_of_the_library() -> None:
    """Its tokenizer cuts windows by `stride`; positions are found by hand from the characters; the loss is its class's."""
    import torch
    import transformers

    torch.manual_seed(3)
    rng, letters = random.Random(4), "abcdefghijklmnop"
    tokenizer = transformers.BertTokenizerFast(
        vocab={piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters])}
    )
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=9, initializer_range=0.5
    )  # fmt: skip
    model = transformers.BertForQuestionAnswering(config).eval()
    objective = AnswerSpans(overlap=3)
    ours = CharacterTokenizer(letters)
    ours.pad_id, ours.unk_id, ours.bos_id, ours.eos_id = 0, 1, 2, 3
    reader = QuestionTokenizers(ours, ours, objective)
    for length in (1, 9, 10, 37):
        question, text = ("".join(rng.choices(letters, k=k)) for k in (4, length))
        start = rng.randrange(length)
        answer = text[start : start + rng.randint(1, 4)]
        pair = Pair(question, text, f"[[{start}, {start + len(answer)}]]")
        rows = objective.make_rows(tokenize([pair], reader), Lengths(17, 0), 0, ours)
        encoded = tokenizer(
            " ".join(question), " ".join(text), truncation="only_second", max_length=17, stride=3,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        assert [row.tokens.tolist() for row in rows] == encoded["input_ids"]
        assert [row.types.tolist() for row in rows] == encoded["token_type_ids"]
        for i, row in enumerate(rows):
            batch = example(objective, row, Lengths(len(row.tokens), 0))
            letter = [
                place // 2 if side == 1 else -1
                for (place, _), side in zip(encoded["offset_mapping"][i], encoded.sequence_ids(i), strict=True)
            ]
            places = [place for place, number in enumerate(letter) if start <= number < start + len(answer)]
            expected = [places[0], places[-1]] if len(places) == len(answer) else [0, 0]
            assert batch.targets.tolist() == expected
            ids, types = (torch.tensor([x]) for x in (encoded["input_ids"][i], encoded["token_type_ids"][i]))
            with torch.no_grad():
                found = model(
                    input_ids=ids, token_type_ids=types,
                    start_positions=torch.tensor(expected[:1]), end_positions=torch.tensor(expected[1:]),
                )  # fmt: skip
            logits = jnp.asarray(torch.stack([found.start_logits, found.end_logits], -1).numpy())
            (term,) = objective.loss(
                Outputs(class_logits=logits), jax.tree.map(lambda x: jnp.asarray(x)[None], batch)
            ).values()
            assert term.mean == pytest.approx(float(found.loss), rel=1e-5)
