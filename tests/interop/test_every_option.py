"""Law: each option of another system takes the values that its reader claims, and refuses all others in the reader's own words.

Oracle: the readers themselves. `Recorded` writes down which values they ask for; each is then given to them.
"""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from flaxformer_lite.interop import FAMILIES, SYSTEMS
from flaxformer_lite.interop.differences import resolved
from flaxformer_lite.interop.hf import decoding
from flaxformer_lite.interop.hf.folder import read_json, read_tensors
from flaxformer_lite.interop.hf.options import refuse_unread
from flaxformer_lite.interop.options import Options, equal, read_table, write_table
from tests.support.hf_folders import DATA, imported
from tests.support.paths import ROOT

Claims = dict[tuple[str, ...], tuple[list[Any], list[Any]]]
"""Values that are claimed, and values that are not, by the names of groups and option."""
NO_WORD = "no such word"
BY_TYPE: dict[tuple[type, ...], tuple[list[Any], list[Any]]] = {
    (int,): ([], ["3", 1.5, True, [3]]),
    (int, float): ([], ["0.5", True, 10**400]),
    (bool,): ([True, False], [1, 0, "true"]),
    (str,): ([], [5, True]),
    (list, tuple): ([], [5, NO_WORD]),
    (dict,): ([], [5, [1]]),
}
"""The same for an option of a type."""


class Recorded(Options):
    """Options that write down the values that readers claim."""

    claims: Claims
    path: tuple[str, ...] = ()

    def claim(self, name: str, taken: list[Any], refused: list[Any]) -> None:
        before = self.claims.setdefault((*self.path, name), ([], []))
        for values, more in zip(before, (taken, refused), strict=True):
            values += [value for value in more if not any(equal(value, known) for known in values)]

    def _value(self, name: str, kinds: tuple[type, ...], default: Any) -> Any:
        self.claim(name, *BY_TYPE[kinds])
        return super()._value(name, kinds, default)

    def text(self, name: str, default: str | None = None, among: Any = ()) -> str:
        self.claim(name, [*among], [NO_WORD] if among else [])
        return super().text(name, default, among)

    def one_of(self, name: str, among: Any, default: Any) -> Any:
        self.claim(name, [*among], [7, NO_WORD])
        return super().one_of(name, among, default)

    def only(self, name: str, *allowed: Any) -> None:
        self.claim(name, [*allowed], [NO_WORD])
        super().only(name, *allowed)

    def group(self, name: str) -> Options:
        found = super().group(name)
        if not isinstance(found, Recorded):
            recorded = recording(self.claims, (*self.path, name))
            found = self._groups[name] = recorded(found._values, found._where)
        return found


def recording(claims: Claims, path: tuple[str, ...] = ()) -> type[Recorded]:
    return type("Recorded", (Recorded,), {"claims": claims, "path": path})


def changed(values: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The options with another value at a path of groups."""
    first, *rest = path
    return values | {first: changed(values.get(first) or {}, tuple(rest), value) if rest else value}


def check(values: dict[str, Any], read: Callable[[dict[str, Any], type[Options]], None]) -> int:
    """Gives each option that is read from these values all values of its claim. Returns the number of values."""
    claims: Claims = {}
    read(values, recording(claims))
    for path, (taken, refused) in claims.items():
        for value in taken:
            complaint = ""
            try:
                read(changed(values, path, value), Options)
            except ValueError as error:
                complaint = str(error)
            # Another option may not go with it.
            assert f"{path[-1]} is {json.dumps(value)}" not in complaint
        for value in refused:
            with pytest.raises(ValueError) as raised:
                read(changed(values, path, value), Options)
            shown = re.escape(f"{path[-1]} is {json.dumps(value)[:90]}")
            assert re.search(rf"{shown}.*: (it should be|only|that is not implemented)", str(raised.value)), (
                raised.value
            )
    return sum(len(taken) + len(refused) for taken, refused in claims.values())


FOLDERS = [
    *("bert/classification", "distilbert/classification", "distilbert/masked_lm", "roberta/classification"),
    *("gpt2/classification", "gpt2/model", "llama/mha", "llama/yarn", "llama/gqa_llama3", "llama/linear"),
    *("mistral/window", "qwen2/window", "qwen3/window", "gemma/plain", "gemma2/plain", "gemma3/plain"),
    *("t5/model", "t5_1_1/gated_gelu", "bart/classification", "marian/separate", "m2m_100/odd_width", "mbart/fifty"),
    *("mt5/hub_layout", "umt5/plain", "xlm_roberta/masked_lm", "camembert/masked_lm"),
    *("t5gemma/uneven", "modernbert/untied_biases", "modernbert/mean_classification", "bert/token_classification"),
    *("eurobert/tied_biases", "eurobert/bos_classification", "gemma3/bidirectional", "hunyuan/bias_yarn"),
    *("phi3/part_window", "glm/plain", "glm4/classification", "starcoder2/window_untied", "stablelm/bias_part"),
    *("helium/bias_tied", "ernie4_5/bias_untied", "seed_oss/out_bias", "ministral/mixed", "gpt_neo/local_untied"),
    *("gpt_neo/answers", "opt/norms_after", "xglm/odd_untied"),
    "exaone4/plain",
    "exaone4/whole_tied",
    "smollm3/bias_window",
    "smollm3/plain",
    "olmo3/two_rotaries",
    "olmo3/classification",
    "olmo2/bias_yarn",
    "olmo2/classification",
    "olmo/bias_tied",
    "olmo/classification",
    "granite/bias_linear",
    "granite/model",
    *("gpt_neo/answers", "opt/norms_after", "xglm/odd_untied", "gpt_neox/sequential_tied", "gptj/whole_tied"),
    *("phi/grouped_norms", "falcon/grouped", "falcon/sequential", "cohere/bias_untied", "bloom/untied"),
    *("deberta_v2/classification", "deberta_v2/model"),
    *("electra/discriminator", "electra/classification", "megatron_bert/pretraining", "roformer/classification"),
    *(
        "data2vec_text/classification",
        "roberta_prelayernorm/classification",
        "nomic_bert/masked_lm",
        "mvp/classification",
    ),
    *(
        "jina_v3/classification",
        "gte/classification",
        "pegasus/plain",
        "blenderbot/scaled",
        "t5/classification",
        "t5/token_classification",
    ),
    *("mpnet/classification", "albert/classification"),
]


@pytest.mark.parametrize("label", FOLDERS)
def test_every_option_of_a_family_takes_what_its_reader_claims(label: str) -> None:
    config = read_json(DATA / label / "config.json")
    family = FAMILIES[config["model_type"]]
    tensors = family.full_names(read_tensors(DATA / label))

    def read(values: dict[str, Any], kind: type[Options]) -> None:
        options = kind(values)
        family.read_heads(options, read_table(family.table, options, family.template), tensors)
        refuse_unread(options, family.model_type)

    assert check(config, read) > 50


def test_every_family_has_a_folder() -> None:
    assert {read_json(DATA / label / "config.json")["model_type"] for label in FOLDERS} == {*FAMILIES}


@pytest.mark.parametrize("label", ["bart/summary", "llama/mha"])
@pytest.mark.parametrize("options", [{"num_beams": 1}, {"do_sample": True, "num_beams": 1}])
def test_every_option_of_decoding_takes_what_its_reader_claims(
    label: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = imported(label)

    def read(values: dict[str, Any], kind: type[Options]) -> None:
        monkeypatch.setattr(decoding, "Options", kind)
        decoding.decode_config(found.config, values, found.model, found.family.special)

    assert check((found.generation or {}) | options, read) > 50


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_option_of_a_system_takes_what_its_reader_claims(name: str) -> None:
    system = SYSTEMS[name]

    def read(values: dict[str, Any], kind: type[Options]) -> None:
        read_table(system.table, kind(values), system.template)

    assert check(write_table(system.table, resolved(system.template)), read) > 20


def test_no_reader_passes_by_the_record_of_what_was_asked() -> None:
    """Only the getters of `Options` see the values: an option that is read elsewhere would be refused as one that nobody reads."""
    for path in (ROOT / "flaxformer_lite/interop").rglob("*.py"):
        assert path.name == "options.py" or not re.search(r"(options|group)\._?values\b", path.read_text()), path
