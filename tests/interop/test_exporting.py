"""Oracle of the systems that a model fits: what `export` itself accepts."""

import dataclasses
import re
from pathlib import Path

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.core.model import ALiBi, DotProduct, ModelConfig, Normal, config, norms, positions
from flaxformer_lite.core.model.config import DecoderSize, LanguageModelHead
from flaxformer_lite.core.model.kernels import SplashBlocks
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.interop import SYSTEMS, read_folder
from flaxformer_lite.interop.exporting import exports_in_words, fitting_systems
from tests.support.experiments import tiny_config
from tests.support.hf_folders import config_of
from tests.support.oracles import WHOLE, load_case
from tests.support.paths import FIXTURES, ROOT
from tests.support.quick import quick


def trained_otherwise(model: ModelConfig) -> ModelConfig:
    """The same model with other values of the settings that change no number of a trained one."""
    assert model.head is None or isinstance(model.head, LanguageModelHead)
    return dataclasses.replace(
        model,
        remat="full",
        scan_unroll=2,
        dtype="bfloat16",
        padding_id=1,
        initializer=Normal(stddev=0.3),
        dropout=dataclasses.replace(model.dropout, embedding_rate=0.3),
        attention=dataclasses.replace(  # type: ignore[type-var]
            model.attention, implementation="xla", splash=SplashBlocks(keys=1024, fused_backward=True)
        ),
        head=None if model.head is None else dataclasses.replace(model.head, loss_chunk=5),
    )


HF = {
    "llama/gqa_llama3": ["hf (llama)", "ctranslate2"],
    "bart/scaled": ["hf (bart)", "ctranslate2"],
    "bert/model": ["hf (bert)", "ctranslate2"],
    "bert/token_classification": ["hf (bert)", "ctranslate2"],
    "modernbert/masked_lm": ["hf (modernbert)"],
    "modernbert/token_classification": ["hf (modernbert)"],
    "eurobert/classification": ["hf (eurobert)", "ctranslate2"],
    "embeddinggemma/two_dense": ["hf (gemma3_text)"],
    "electra/masked_lm": ["hf (electra)", "ctranslate2"],
    "megatron_bert/pretraining": ["hf (megatron-bert)", "ctranslate2"],
    "deberta_v2/classification": ["hf (deberta-v2)"],
    "roformer/classification": ["hf (roformer)", "ctranslate2"],
    "nomic_bert/classification": ["hf (nomic_bert)", "ctranslate2"],
    "albert/masked_lm": ["hf (albert)"],
    "mpnet/masked_lm": ["hf (mpnet)"],
    "pegasus/plain": ["hf (pegasus)", "ctranslate2"],
}


QUICK = ("llama/gqa_llama3", "bart/scaled", "bert/token_classification", "embeddinggemma/two_dense", "albert/masked_lm")


@pytest.mark.parametrize("label", quick(HF, QUICK.__contains__))
def test_an_imported_model_fits_the_family_that_it_is_from(label: str):
    found = read_folder(Path(FIXTURES / "hf" / label))
    for model in (found.model, trained_otherwise(found.model)):
        systems = fitting_systems(config_of(model))
        assert [name for name in systems if name not in SYSTEMS] == HF[label]


@pytest.mark.parametrize("name", ["modernbert_base", "tiny_modernbert"])
def test_the_configs_of_an_encoder_fit_its_family(name: str):
    assert "hf (modernbert)" in fitting_systems(load_config(name))


ROWS = re.findall(r"^\| `(\w+)` \| `(.*=.*)` \|$", (ROOT / "docs/systems/huggingface.md").read_text("utf-8"), re.M)


@pytest.mark.parametrize(("family", "settings"), ROWS)
def test_the_settings_of_the_page_are_those_of_a_family(family: str, settings: str):
    model = eval(f"ModelConfig(vocab_size=100, {settings})", vars(config) | vars(norms) | vars(positions) | globals())
    assert f"hf ({family})" in fitting_systems(config_of(model))


@pytest.mark.slow
def test_gated_layers_and_a_decoder_with_heads_of_its_own_are_no_error_of_a_family():
    """Gemma's scale of the scores is not known by one number of heads."""
    model = dataclasses.replace(tiny_config().model, activation="swiglu", decoder=DecoderSize(num_heads=1))
    assert exports_in_words(config_of(model)).startswith("Hugging Face: no (")


@pytest.mark.slow
@pytest.mark.parametrize("system", WHOLE)
def test_a_model_of_an_older_system_fits_it(system: str):
    model = SYSTEMS[system].model_config(load_case(WHOLE[system])[0])
    assert system in fitting_systems(config_of(model))
    assert system in fitting_systems(config_of(trained_otherwise(model)))


@pytest.mark.slow
def test_a_model_that_no_system_has_fits_nothing():
    model = dataclasses.replace(tiny_config().model, attention=DotProduct(bias=False, soft_cap=3.0, d_value=5))
    assert fitting_systems(config_of(model)) == []


@pytest.mark.slow
def test_the_settings_in_the_way_are_named_by_their_groups(monkeypatch: pytest.MonkeyPatch):
    """By hand: no family has them; no system has prompts that attend to themselves, CTranslate2 no endless answer."""
    config = config_of(dataclasses.replace(tiny_config().model, positions=ALiBi()))
    near = "position_padding_id, positions"
    assert exports_in_words(config) == f"Hugging Face: no ({near}); CTranslate2: no (positions)"
    endless = dataclasses.replace(config, decode=DecodeConfig(eos_ids=()))
    monkeypatch.setattr(type(config.objective), "prompt_attention", "full")
    words = f"Hugging Face: no (objective, {near}); CTranslate2: no (objective, positions, decode.eos_ids)"
    assert exports_in_words(endless) == words
    assert "ctranslate2" not in fitting_systems(tiny_config())
