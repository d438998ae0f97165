"""Oracles: CTranslate2 itself, where it is installed, on the folders that are written for it; and its file format, read by hand."""

import dataclasses
import functools
import json
import math
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model import DotProduct, Transformer
from flaxformer_lite.core.model.config import (
    POST_NORM,
    DecoderSize,
    EmbeddingProjection,
    LanguageModelHead,
    ModelConfig,
    Residual,
)
from flaxformer_lite.core.model.inputs import example_inputs
from flaxformer_lite.core.model.masks import Penalize
from flaxformer_lite.core.model.norms import DeviationNorm, LayerNorm, RMSNorm
from flaxformer_lite.core.model.positions import (
    ALiBi,
    DynamicScaling,
    Learned,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    RelativeBias,
    Rotary,
    YarnScaling,
)
from flaxformer_lite.core.predictions.forward import forward
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.characters import ByteTokenizer, CharacterTokenizer
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.interop.check import check_ctranslate2 as check_folder
from flaxformer_lite.interop.ctranslate2 import export_run, notes, token_names, unsupported_settings
from flaxformer_lite.interop.hf.import_folder import read_folder
from flaxformer_lite.run import Run, write_run
from flaxformer_lite.workdir.folder import RunFolder
from tests.support import needs
from tests.support.commands import Command
from tests.support.experiments import tiny_config
from tests.support.paths import FIXTURES
from tests.support.quick import quick
from tests.support.tokenizers import gapped

HF = FIXTURES / "hf"
BOTH = {"vocab_size": 43, "d_model": 24, "num_heads": 4, "d_ff": 29, "num_encoder_layers": 2, "num_decoder_layers": 3}
OF_ALL_HEADS = DotProduct(qk_norm=LayerNorm(), qk_norm_width="all_heads")
LONG = LongRopeScaling(
    short_factors=(1.0, 1.5, 2.0),
    long_factors=(2.0, 3.0, 5.0),
    original_length=4096,
    length=4096,
    amplitude=math.sqrt(1 + math.log(32) / math.log(4096)),
)
ALONE = BOTH | {"num_encoder_layers": 0, "num_decoder_layers": 2}
MODELS = {
    "pre_norm": ModelConfig(**BOTH, share_target_output=False),
    "gated_rms_grouped_rotary": ModelConfig(
        **BOTH,
        attention=DotProduct(num_kv_heads=2, d_key=8, bias=False),
        positions=Rotary(layout="interleaved"),
        norm=RMSNorm(epsilon=1e-5),
        activation="swiglu",
        feed_forward_bias=False,
        target_vocab_size=47,
        share_source_target=False,
        share_target_output=False,
    ),
}
"""Encoder–decoders of this package; beams are compared."""
ENDS = {"pre_norm": 31, "gated_rms_grouped_rotary": 5}
"""The end token: one that those weights soon predict, so that answers differ in length."""
MORE_MODELS = {
    "pre_norm_tied": ModelConfig(**BOTH),
    "post_norm_learned": ModelConfig(
        **BOTH,
        residual=POST_NORM,
        positions=Learned(max_positions=40, offset=3),
        embedding_norm=True,
        activation="gelu",
    ),
    "norms_after_and_last": ModelConfig(
        **BOTH, residual=Residual(pre="", post="dan", final="n"), activation="gelu_tanh"
    ),
    "no_last_norm": ModelConfig(**BOTH, residual=Residual(pre="n", post="da", final=""), norm=LayerNorm(bias=False)),
    "two_tables_head_bias": ModelConfig(
        **BOTH, share_source_target=False, head=LanguageModelHead(bias=True, soft_cap=3.0, scale=0.5), activation="silu"
    ),
    "one_kv_head_scaled": ModelConfig(
        **BOTH,
        attention=DotProduct(num_kv_heads=1, scale=0.2, out_bias=False),
        positions=NoPositions(),
        activation="geglu",
    ),
    "other_decoder": ModelConfig(
        **BOTH,
        decoder=DecoderSize(num_heads=3, d_ff=20),
        positions=RelativeBias(num_buckets=8, max_distance=9),
        activation="reglu",
    ),
    "alone": ModelConfig(**ALONE, scale_embeddings=False),
    "alone_llama3": ModelConfig(
        **ALONE,
        positions=Rotary(base=50.0, scaling=Llama3Scaling(factor=4.0, original_length=20)),
        activation="geglu_tanh",
    ),
    "alone_longrope": ModelConfig(**ALONE, positions=Rotary(base=50.0, scaling=LONG)),
    "alone_dynamic": ModelConfig(
        **ALONE, positions=Rotary(base=50.0, scaling=DynamicScaling(factor=4.0, original_length=40, length=40))
    ),
    "alone_part_turned": ModelConfig(**ALONE, positions=Rotary(fraction=0.5, layout="interleaved"), activation="tanh"),
    "alone_alibi": ModelConfig(**ALONE | {"num_heads": 6}, positions=ALiBi()),
    "alone_bias": ModelConfig(**ALONE, positions=RelativeBias(num_buckets=8, max_distance=9), residual=POST_NORM),
    "alone_branches": ModelConfig(**ALONE, residual=Residual(branches="parallel"), positions=Rotary(fraction=0.5)),
    "alone_one_norm": ModelConfig(
        **ALONE, residual=Residual(branches="parallel_one_norm"), head=LanguageModelHead(bias=True, scale=0.3)
    ),
    "alone_four_norms": ModelConfig(
        **ALONE, norm=RMSNorm(offset=1.0), residual=Residual(pre="n", post="nda", final="n"), positions=Rotary()
    ),
}
"""Further models, for the comparison of the scores of texts."""
FAST = ("other_decoder",)


pytestmark = pytest.mark.usefixtures("one_device")


def random_params(model: ModelConfig) -> Any:
    """Every parameter at random, biases and scales too, so that none could be left out."""
    shapes = jax.eval_shape(Transformer(model).init, jax.random.key(0), example_inputs(model))["params"]
    generator = np.random.default_rng(7)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        deviation = {"scale": 0.2, "kernel": 0.3, "bias": 0.2}.get(path[-1].key, 0.6)
        return np.float32((path[-1].key == "scale") + deviation * generator.standard_normal(leaf.shape))

    return jax.tree.map_with_path(draw, shapes)


def run_of(model: ModelConfig, params: Any, **decode: Any) -> Run:
    """A run without a tokenizer that nothing has written."""
    data = DataConfig(tokenizer=None, max_source_length=16, max_target_length=16)
    config = Config(model=model, data=data, decode=DecodeConfig(finish_at_limit=True, max_new_tokens=12, **decode))
    return Run(RunFolder("none"), config, params, None, 0)


@functools.cache
def sample(name: str) -> Run:
    """A run of one of the models above, or of a fixture."""
    if (model := (MODELS | MORE_MODELS).get(name)) is not None:
        return run_of(model, random_params(model), eos_ids=(ENDS.get(name, 3),))
    found = read_folder(HF / name)
    ids = {"pad_id": found.decode.pad_id, "bos_id": found.decode.bos_id, "eos_ids": found.decode.eos_ids}
    return run_of(found.model, found.params, **ids)


def texts(run: Run, lengths: tuple[int, ...], size: int) -> list[list[int]]:
    """Random token ids, none of them special."""
    decode, generator = run.config.decode, np.random.default_rng(3)
    usual = [i for i in range(size) if i not in (decode.pad_id, decode.bos_id, decode.eos_id)]
    return [generator.choice(usual, length).tolist() for length in lengths]


def as_tokens(rows: list[list[int]]) -> list[list[str]]:
    return [[str(i) for i in row] for row in rows]


def reader(kind: str, folder: Path) -> Any:
    import ctranslate2

    return getattr(ctranslate2, kind)(
        str(folder), device="cpu", compute_type="float32", inter_threads=1, intra_threads=1
    )


# The same answers -----------------------------------------------------------------------------------------------------


def check_beams(name: str, tmp_path: Path) -> None:
    """Greedy and beam search of 5: all answers, in order, and their scores."""
    run, folder = sample(name), tmp_path / "folder"
    export_run(run.config, run.params, None, folder)
    both = run.config.model.num_encoder_layers > 0
    # CTranslate2 leaves a prompt out only if it has two tokens, and reads it right only within a window. In one batch, prompts of
    # different lengths change the last of each other's hypotheses: the same prompt has others there when it is alone.
    rows = texts(run, (9, 5, 2, 1) if both else (4, 3, 2, 2), run.config.model.vocab_size)
    for beam in (1, 5):
        settings = {"beam_size": beam, "num_hypotheses": beam}
        common = settings | {"length_penalty": 1.0, "return_scores": True}
        if both:
            found = reader("Translator", folder).translate_batch(
                as_tokens(rows), max_decoding_length=12, min_decoding_length=0, **common
            )
            theirs = [[[int(token) for token in tokens] for tokens in result.hypotheses] for result in found]
            ours = run.hypotheses_of_ids(rows, **settings)
        else:
            found = reader("Generator", folder).generate_batch(
                as_tokens(rows), max_length=12, min_length=0, include_prompt_in_result=False, max_batch_size=1, **common
            )
            theirs = [result.sequences_ids for result in found]
            ours = run.completions_of_ids(rows, **settings)
        assert [[hypothesis.tokens for hypothesis in answers] for answers in ours] == theirs
        scores = [[hypothesis.score for hypothesis in answers] for answers in ours]
        np.testing.assert_allclose(scores, [result.scores for result in found], atol=1e-4)
        assert name not in ENDS or len({len(tokens) for answers in theirs for tokens in answers}) > 1


@pytest.mark.slow
@needs.ctranslate2
@pytest.mark.parametrize("name", ["gated_rms_grouped_rotary", "llama/gqa_llama3"])
def test_beams_are_equal(name: str, tmp_path: Path) -> None:
    check_beams(name, tmp_path)


@needs.ctranslate2
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("pre_norm", "t5/relu_tied", "t5/deep_decoder", "t5_1_1/gated_gelu", "bart/plain", "bart/untied"),
        *("marian/shared", "marian/separate", "gpt2/tied", "llama/mqa_sharded", "mistral/window", "qwen2/plain"),
        *("qwen3/plain", "gemma/hub_layout", "gemma3/scaled", "m2m_100/odd_width", "mbart/fifty"),
        *(
            "mt5/hub_layout",
            "phi3/part_window",
            "glm4/plain",
            "starcoder2/plain",
            "stablelm/bias_part",
            "opt/norms_after",
        ),
        *("helium/bias_tied", "ernie4_5/plain", "seed_oss/out_bias", "gpt_neo/plain", "opt/plain", "xglm/plain"),
        *("gpt_neox/plain", "gptj/plain", "phi/plain", "falcon/plain", "falcon/grouped", "cohere/bias_untied"),
        "bloom/plain",
        *("smollm3/plain", "opt/narrow"),
    ],
)
def test_beams_are_equal_for_every_family(name: str, tmp_path: Path) -> None:
    check_beams(name, tmp_path)


@needs.ctranslate2
@pytest.mark.parametrize("name", quick(MORE_MODELS, FAST.__contains__))
def test_scores_of_given_texts_are_equal(name: str, tmp_path: Path) -> None:
    run = sample(name)
    model, decode = run.config.model, run.config.decode
    export_run(run.config, run.params, None, tmp_path / "folder")
    targets = texts(run, (6, 6), model.output_size)
    if model.num_encoder_layers == 0:
        theirs = np.asarray(reader("Generator", tmp_path / "folder").forward_batch(as_tokens(targets)))
        ours = forward(run.model, {"params": run.params}, decode, input_ids=targets).logits
    else:
        sources = texts(run, (7, 7), model.vocab_size)
        found = reader("Translator", tmp_path / "folder").score_batch(as_tokens(sources), as_tokens(targets))
        theirs = np.asarray([result.log_probs for result in found])
        read = [[decode.bos_id, *row] for row in targets]
        said = forward(run.model, {"params": run.params}, decode, input_ids=sources, decoder_input_ids=read).logits
        said_next = np.asarray([[*row, decode.eos_id] for row in targets])[..., None]
        ours = np.take_along_axis(np.asarray(jax.nn.log_softmax(said)), said_next, -1)[..., 0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


# The folder -----------------------------------------------------------------------------------------------------------


def read_model(path: Path) -> tuple[str, int, dict[str, np.ndarray], dict[str, str]]:
    """`model.bin` as CTranslate2's own writer describes it: name, revision, arrays, aliases."""
    content = path.read_bytes()
    place = 0

    def take(form: str) -> Any:
        nonlocal place
        found = struct.unpack_from("<" + form, content, place)
        place += struct.calcsize("<" + form)
        return found[0] if len(found) == 1 else found

    def text() -> str:
        return take(f"{take('H')}s").removesuffix(b"\0").decode()

    assert take("I") == 6
    name, revision, arrays = text(), take("I"), {}
    for _ in range(take("I")):
        key, rank = text(), take("B")
        shape = [take("I") for _ in range(rank)]
        dtype, size = ["float32", "int8", "int16", "int32"][take("B")], take("I")
        arrays[key] = np.frombuffer(take(f"{size}s"), dtype).reshape(shape)
    aliases = {text(): text() for _ in range(take("I"))}
    assert place == len(content)
    return name, revision, arrays, aliases


def test_a_parameter_without_a_name_there_is_refused_and_so_is_a_subclass(tmp_path: Path) -> None:
    """A new variant that subclasses an old one has other numbers, perhaps with a parameter more: neither may get lost."""
    run = sample("pre_norm")
    more = {**run.params, "decoder": {**run.params["decoder"], "temperature": np.ones(3, np.float32)}}
    with pytest.raises(
        ValueError, match=r"^1 array without a name in that system: decoder/temperature: it cannot hold this model$"
    ):
        export_run(run.config, more, None, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    for setting, old in {
        "attention": DotProduct,
        "positions": Learned,
        "norm": LayerNorm,
        "head": LanguageModelHead,
    }.items():
        model = dataclasses.replace(MODELS["pre_norm"], **{setting: type("New", (old,), {})()})
        assert f"model.{setting}" in unsupported_settings(model)


@needs.ctranslate2
@pytest.mark.parametrize("name", quick(["gated_rms_grouped_rotary", "alone_alibi", "alone"], "alone".__eq__))
def test_a_folder_is_compared_with_the_model(name: str, tmp_path: Path) -> None:
    """One parameter that got lost is noticed: here the bias or scale of one norm, or one kernel."""
    run, folder = sample(name), tmp_path / "folder"
    export_run(run.config, run.params, None, folder)
    assert check_folder(folder, run.config, run.params, None)
    layers = run.params["decoder"]["layers"]
    lost = {**layers, "attention_pre_norm": jax.tree.map(np.ones_like, layers["attention_pre_norm"])}
    params = {**run.params, "decoder": {**run.params["decoder"], "layers": lost}}
    with pytest.raises(ValueError, match="CTranslate2 answers otherwise with this model: log-probabilities differ by"):
        check_folder(folder, run.config, params, None)


@pytest.mark.slow
def test_the_command_writes_a_folder(tmp_path: Path, command: Command) -> None:
    """By hand: which arrays there are, what is tied, what is in which matrix, and what CTranslate2 adds to a text."""
    config = tiny_config()
    model = config.model
    params, tokenizer = random_params(model), CharacterTokenizer("abc")
    write_run(RunFolder(tmp_path / "run"), config, 0, params, "nowhere", tokenizers=Tokenizers(tokenizer, tokenizer))
    command("export", "ctranslate2", tmp_path / "run", tmp_path / "out")
    name, revision, arrays, aliases = read_model(tmp_path / "out/model.bin")
    assert (name, revision) == ("TransformerSpec", 7)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "model.bin",
        "shared_vocabulary.json",
        "tokenizer.characters.json",
    ]
    tables = {"decoder/projection/weight", "encoder/embeddings_0/weight", "encoder/position_encodings/encodings"}
    assert set(aliases) == tables and aliases["decoder/projection/weight"] == "decoder/embeddings/weight"
    np.testing.assert_array_equal(arrays["decoder/embeddings/weight"], params["embedding"]["embedding"])
    own = params["decoder"]["layers"]["attention"]
    fused = np.concatenate([own[role]["kernel"][1].T for role in ("query", "key", "value")])
    np.testing.assert_array_equal(arrays["decoder/layer_1/self_attention/linear_0/weight"], fused)
    assert arrays["decoder/layer_1/attention/linear_1/weight"].shape == (2 * model.d_model, model.d_model)
    assert arrays["decoder/position_encodings/encodings"].shape == (1024, model.d_model)
    assert arrays["encoder/num_heads"] == 3 and arrays["encoder/pre_norm"] == 1
    vocabulary = json.loads((tmp_path / "out/shared_vocabulary.json").read_text(encoding="utf-8"))
    assert vocabulary[:8] == ["<pad>", "<unk>", "<s>", "</s>", "a", "b", "c", "<id 7>"] and len(set(vocabulary)) == 149
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "add_source_bos": False,
        "add_source_eos": True,
        "bos_token": "<s>",
        "decoder_start_token": "<s>",
        "eos_token": "</s>",
        "layer_norm_epsilon": 1e-6,
        "multi_query_attention": False,
        "unk_token": "<unk>",
    }
    assert "exists already" in command.mistake("export", "ctranslate2", tmp_path / "run", tmp_path / "out")
    command("export", "ctranslate2", tmp_path / "run", tmp_path / "out8", "--weights-dtype", "int8")
    stored = read_model(tmp_path / "out8/model.bin")[2]
    rows, scales = (stored[f"decoder/embeddings/{name}"] for name in ("weight", "weight_scale"))
    table = arrays["decoder/embeddings/weight"]
    assert rows.dtype == np.int8 and (tmp_path / "out8/tokenizer.characters.json").is_file()
    assert (abs(rows / scales[:, None] - table) <= abs(table).max(1, keepdims=True) / 253).all()


def test_settings_of_answers_that_the_folder_cannot_hold_are_noted(tmp_path: Path) -> None:
    """All end tokens but the first, and suppressed tokens, are arguments of each call; without an end token nothing is exported."""
    model = ModelConfig(**BOTH)
    told = notes(model, DecodeConfig(eos_ids=(3, 5, 6), suppress_ids=(7,)))
    assert [("eos_ids: pass (5, 6)" in note, "suppress_ids: pass (7,)" in note) for note in told] == [
        (True, False),
        (False, True),
    ]
    assert notes(model, DecodeConfig()) == []
    run = run_of(model, {}, eos_ids=())
    with pytest.raises(ValueError, match=r"decode\.eos_ids is \(\)"):
        export_run(run.config, run.params, None, tmp_path / "out")


def test_every_id_has_a_name_of_its_own() -> None:
    assert token_names(None, 3) == ["0", "1", "2"]
    names = token_names(ByteTokenizer(), 263)
    assert len(set(names)) == 263 and names[0] == "<pad>" and names[ord("a") + 4] == "a" and names[262] == "<id 262>"
    assert token_names(gapped(), 9) == ["b", *(f"<id {i}>" for i in range(1, 7)), "c", "<id 8>"]


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"norm": DeviationNorm()}, "norm"),
        ({"residual": Residual(pre="", post="nda", final="")}, "residual"),
        ({"residual": Residual(pre="n", post="nda", final="n")}, "residual"),
        ({"residual": Residual(scale=0.5)}, "residual.scale"),
        ({"residual": Residual(branches="parallel")}, "residual"),
        ({"num_encoder_layers": 0, "positions": Rotary(layers=(1,))}, "positions.layers"),
        ({"attention": DotProduct(soft_cap=5.0)}, "attention.soft_cap"),
        ({"attention": DotProduct(d_value=5)}, "attention.d_value"),
        ({"attention": DotProduct(qk_norm=LayerNorm())}, "attention.qk_norm"),
        (
            {"num_encoder_layers": 0, "attention": DotProduct(qk_norm=LayerNorm(), qk_norm_width="all_heads")},
            "attention.qk_norm_width",
        ),
        ({"norm": LayerNorm(bias=False, scale=False)}, "norm.scale"),
        ({"attention": DotProduct(masking=Penalize(value=-5.0))}, "attention.masking"),
        ({"activation": "linear"}, "activation"),
        ({"embedding_projection": EmbeddingProjection(width=5, of="tokens")}, "embedding_projection"),
        ({"share_layers": True}, "share_layers"),
        ({"positions": ALiBi()}, "positions"),
        ({"positions": Learned(relative=RelativeBias())}, "positions.relative"),
        ({"positions": Rotary(scaling=YarnScaling(factor=2.0, original_length=8))}, "positions.scaling"),
        ({"positions": Rotary(scaling=dataclasses.replace(LONG, length=4097))}, "positions.scaling"),
        ({"positions": Rotary(scaling=dataclasses.replace(LONG, amplitude=0.9))}, "positions.scaling"),
        ({"positions": Rotary(scaling=DynamicScaling(factor=2.0, original_length=16, length=17))}, "positions.scaling"),
        ({"num_token_types": 2}, "num_token_types"),
        ({"pooler": Pooler()}, "pooler"),
        ({"head": LanguageModelHead(transform="gelu")}, "head"),
        ({"head": None}, "head"),
        ({"num_decoder_layers": 0, "num_token_types": 2}, "num_token_types"),
        ({"num_decoder_layers": 0, "positions": ALiBi()}, "positions"),
    ],
)
def test_what_it_cannot_express_is_named(changes: dict[str, Any], setting: str, tmp_path: Path) -> None:
    model = ModelConfig(**BOTH | changes)
    assert [*unsupported_settings(model)] == [f"model.{setting}"]
    run = run_of(model, {})
    with pytest.raises(ValueError, match=rf"^CTranslate2 has no model like this one: model\.{setting} is [^=]+$"):
        export_run(run.config, run.params, None, tmp_path / "folder")
    assert not any(tmp_path.iterdir())


@needs.ctranslate2
def test_an_encoder_alone_is_compared_by_its_last_layer(tmp_path: Path) -> None:
    """Its heads are not in the folder; other parameters are noticed."""
    encoder = {
        "num_decoder_layers": 0,
        "num_token_types": 2,
        "scale_embeddings": False,
        "head": LanguageModelHead(bias=True, transform="gelu"),
        "pooler": Pooler(num_classes=2),
    }
    model = ModelConfig(**BOTH | encoder)
    params = random_params(model)
    run = run_of(model, params, eos_ids=())
    _, told = export_run(run.config, run.params, None, tmp_path / "folder")
    assert told == [notes(run.config.model, run.config.decode)[0]] and "that reads it" in told[0]
    assert check_folder(tmp_path / "folder", run.config, run.params, None)
    other = jax.tree.map(lambda x: x + 0.5, run.params)
    with pytest.raises(ValueError, match="answers otherwise with this model, by its last layer"):
        check_folder(tmp_path / "folder", run.config, other, None)


class Sharper(DotProduct):
    """A variant that computes other scores from the same parameters."""


def test_variants_count_by_their_exact_type() -> None:
    """A subclass may compute something else, so it is refused."""
    assert unsupported_settings(ModelConfig(**BOTH | {"attention": Sharper()})) == {"model.attention": Sharper()}
