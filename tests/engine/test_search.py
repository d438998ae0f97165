"""Answers of CTranslate2 for models, settings and sources drawn by a seed. Oracle: our own `Decoder`.

Other seeds: `FLAXFORMER_LITE_SEED=7 pytest -m slow` with this file.
"""

import dataclasses
import itertools
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model import POST_NORM, DotProduct, LanguageModelHead, ModelConfig, RMSNorm, Transformer
from flaxformer_lite.core.model.positions import ALiBi, Learned, RelativeBias, Rotary
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.search import DecodeConfig, Forced, Request, Sampling
from flaxformer_lite.core.search.answers import Hypothesis
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.engine.rules import library, obstacles
from flaxformer_lite.engine.search import EngineSearch, PromptSearch, Sizes
from flaxformer_lite.interop.ctranslate2 import export_run, num_positions
from tests.support import needs, reference_search
from tests.support.experiments import normal_params, tiny_config, with_train
from tests.support.quick import quick

pytestmark = [needs.ctranslate2, pytest.mark.usefixtures("one_device")]
FIRST = 100 * int(os.environ.get("FLAXFORMER_LITE_SEED", "0"))
SIZE = {"vocab_size": 37, "d_model": 16, "num_heads": 2, "d_ff": 19, "num_encoder_layers": 1, "num_decoder_layers": 2}
MODELS = (
    ModelConfig(**SIZE, share_target_output=False),
    ModelConfig(**SIZE, residual=POST_NORM, positions=Learned(max_positions=24), activation="gelu"),
    ModelConfig(
        **SIZE,
        attention=DotProduct(num_kv_heads=1, bias=False),
        positions=Rotary(),
        norm=RMSNorm(),
        activation="swiglu",
    ),
    ModelConfig(
        **SIZE, positions=RelativeBias(num_buckets=8, max_distance=9), head=LanguageModelHead(bias=True, scale=0.5)
    ),
)
TIE = 2e-5
"""A difference of scores by which the order of a sum may decide between two answers."""


class Searches(NamedTuple):
    """The same model for both."""

    model: ModelConfig
    params: Any
    translator: Any

    def ours(self, decode: DecodeConfig, requests: list[Request]) -> list[list[Hypothesis]]:
        return Decoder(Transformer(self.model), decode).generate({"params": self.params}, requests)

    def theirs(self, decode: DecodeConfig, requests: list[Request]) -> list[list[Hypothesis]]:
        return self.search(decode).generate(None, requests)

    def search(self, decode: DecodeConfig) -> EngineSearch:
        return EngineSearch(self.translator, decode, sizes(config_of(self.model)))


def config_of(model: ModelConfig) -> Config:
    config = tiny_config()
    data = dataclasses.replace(config.data, max_source_length=20, max_target_length=20)
    if model.num_encoder_layers:
        return dataclasses.replace(config, model=model, data=data)
    config = with_train(config, text_metrics=(), best_metric="loss")
    return dataclasses.replace(config, model=model, data=data, objective=CausalLM())


def sizes(config: Config) -> Sizes:
    model = config.model
    return Sizes(
        *model.vocab_sizes, model.positions.max_positions, num_positions(config), config.data.max_source_length
    )


def searches(model: ModelConfig, folder: Path, seed: int, dtype: str = "float32") -> Searches:
    config = config_of(model)
    params = jax.tree.map(lambda x: np.float32(0.6) * x, normal_params(config, seed))
    changes = {"decoder_start_token": None, "bos_token": "0", "eos_token": "0"}
    export_run(config, params, None, folder / "export", dtype, changes)
    compute_type = "int8_float32" if dtype == "int8" else dtype
    options = {"device": "cpu", "compute_type": compute_type, "inter_threads": 2, "intra_threads": 1}
    kind = library().Translator if model.num_encoder_layers else library().Generator
    return Searches(model, params, kind(str(folder / "export"), **options))


def draw(seed: int) -> tuple[ModelConfig, DecodeConfig, list[Request]]:
    rng = np.random.default_rng([55, seed])
    one_of = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    changes: dict[str, Any] = {
        "beam_size": one_of(1, 1, 2, 3, 5),
        "length_penalty": one_of("none", "average", "average"),
        "finish_at_limit": one_of(True, False),
        "max_length_ratio": one_of(0.0, 0.7, 1.5),
        "max_length_extra": one_of(1, 3, 9),
        "num_ids": one_of(None, None, 30),
        "forced_bos_id": one_of(None, None, 7),
        "forced_eos_id": one_of(None, None, 3),
        "suppress_ids": one_of((), (), (5, 9)),
        "min_new_tokens": one_of(0, 0, 2, 4),
        "bos_id": one_of(2, 8),
        "batch_tokens": one_of(16, 64, 2048),
        "early_stopping": one_of(True, False),
    }
    if changes["length_penalty"] == "average":
        changes["alpha"] = one_of(1.0, 0.6, 0.0, -0.5)
    beams = changes["beam_size"] > 1
    if not beams and one_of(True, False):
        changes["length_penalty"] = "gnmt"
        changes.setdefault("alpha", 0.6)
    if not beams:  # its score is that of the probabilities before these rules
        changes |= {"suppress_ids": (), "min_new_tokens": 0}
    elif changes["forced_bos_id"] is not None and (changes["suppress_ids"] or changes["num_ids"]):
        changes["min_new_tokens"] = 2  # the probability of an end behind the forced token is known without bans alone
    changes["renormalize"] = bool(changes["suppress_ids"] or changes["min_new_tokens"] or one_of(True, False))
    early = changes["forced_bos_id"] is not None and changes["min_new_tokens"] < 2
    if beams and changes["finish_at_limit"] and changes["forced_eos_id"] is None and not early:
        changes["num_hypotheses"] = one_of(1, changes["beam_size"])
    decode = DecodeConfig(**changes)
    requests = []
    for _ in range(24):
        source = [*rng.integers(4, SIZE["vocab_size"], rng.integers(0, 14)).tolist(), 3]
        limit = one_of(None, None, None, 1, 2, 6)
        own = dataclasses.replace(decode, bos_id=one_of(2, 8)) if rng.integers(4) == 0 else None
        requests.append(Request(source, own, limit))
    requests += [Request([]), Request([0, 0]), Request([5, 3, 0])]
    return MODELS[seed % len(MODELS)], decode, requests


def assert_same(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]]) -> None:
    """The same texts with the same scores; another text only where the scores are as good as equal."""
    assert len(ours) == len(theirs)
    for number, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        assert len(own) == len(other), number
        scores = [one.score for one in own]
        assert [one.score for one in other] == pytest.approx(scores, rel=1e-4, abs=TIE), (number, own, other)
        for mine, his in zip(own, other, strict=True):
            assert mine.tokens == his.tokens or abs(mine.score - his.score) < TIE, (number, mine, his)


@pytest.mark.parametrize("seed", quick(range(FIRST, FIRST + 60), lambda seed: seed == FIRST))
def test_drawn_settings_mean_the_same(seed: int, tmp_path: Path):
    model, decode, requests = draw(seed)
    assert obstacles(decode) == [], decode
    both = searches(model, tmp_path, seed)
    assert_same(both.ours(decode, requests), both.theirs(decode, requests))


PROMPTED = {**SIZE, "num_encoder_layers": 0}
DECODERS = (
    ModelConfig(**PROMPTED, positions=Learned(max_positions=24), activation="gelu"),
    ModelConfig(
        **PROMPTED,
        attention=DotProduct(num_kv_heads=1, bias=False),
        positions=Rotary(),
        norm=RMSNorm(),
        activation="swiglu",
    ),
    ModelConfig(**PROMPTED),
    ModelConfig(**PROMPTED, positions=ALiBi()),
)


@pytest.mark.parametrize("seed", quick(range(FIRST, FIRST + 40), lambda seed: seed - FIRST == 1))
def test_prompts_are_continued_by_the_same_tokens(seed: int, tmp_path: Path):
    """Law: as sources; a stream and a watched answer of one beam are that answer too, and it may have several ends."""
    model, (_, decode, _), rng = DECODERS[seed % len(DECODERS)], draw(seed), np.random.default_rng(seed)
    ends = (3, 9) if decode.beam_size == 1 and seed % 2 else (3,)
    decode = dataclasses.replace(decode, forced_bos_id=None, eos_ids=ends, max_length_extra=9)
    rows = [rng.integers(4, 37, rng.integers(1, 14)).tolist() for _ in range(24)]
    requests = [Request(row, limit=(None, None, 1, 2, 6)[i % 5]) for i, row in enumerate(rows)]
    both = searches(model, tmp_path, seed)
    expected, search = both.ours(decode, requests), PromptSearch(both.translator, decode, sizes(config_of(model)))
    assert_same(expected, search.generate(None, requests))
    if decode.beam_size == 1:
        assert_same(expected, search.generate(None, requests, watch=lambda index: lambda tokens: None))
        streamed = [list(itertools.chain(*search.stream(None, request))) for request in requests]
        assert streamed == [answers[0].tokens for answers in expected]


SAME, DIVIDED, JAX = "the same", "the same, but for some values", "JAX answers"
TABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "beam_size": (SAME, {}),
    "sampling": (JAX, {"sampling": Sampling()}),
    "length_penalty": (DIVIDED, {"length_penalty": "gnmt", "beam_size": 2}),
    "alpha": (DIVIDED, {"alpha": 31.0}),
    "early_stopping": (DIVIDED, {"early_stopping": "never", "beam_size": 2}),
    "finish_at_limit": (SAME, {}),
    "num_hypotheses": (DIVIDED, {"num_hypotheses": 2, "beam_size": 2}),
    "max_length_ratio": (SAME, {}),
    "max_length_extra": (SAME, {}),
    "max_new_tokens": (SAME, {}),
    "min_new_tokens": (DIVIDED, {"min_new_tokens": 1}),
    "forced_bos_id": (DIVIDED, {"forced_bos_id": 5, "num_ids": 20, "beam_size": 2}),
    "forced_eos_id": (DIVIDED, {"forced_eos_id": 11}),
    "num_ids": (SAME, {}),
    "suppress_ids": (DIVIDED, {"suppress_ids": (4,)}),
    "no_repeat_ngram": (JAX, {"no_repeat_ngram": 2}),
    "repetition_penalty": (JAX, {"repetition_penalty": 1.2}),
    "renormalize": (SAME, {}),
    "pad_id": (SAME, {}),
    "bos_id": (DIVIDED, {"bos_id": None}),
    "eos_ids": (DIVIDED, {"eos_ids": (3, 4), "beam_size": 2}),
    "batch_tokens": (SAME, {}),
}
"""Every setting of decoding: what CTranslate2 makes of it, and a value that it does not obey."""


def test_every_setting_of_decoding_is_in_the_table():
    assert TABLE.keys() == {field.name for field in dataclasses.fields(DecodeConfig)}


@pytest.mark.parametrize("name", [name for name, (verdict, _) in TABLE.items() if verdict != SAME])
def test_a_value_that_is_not_obeyed_is_refused_by_name(name: str):
    decode = DecodeConfig(**TABLE[name][1])
    assert any(line.startswith(f"decode.{name} ") for line in obstacles(decode))
    with pytest.raises(ValueError, match=rf"decode\.{name} .*: change that, or choose engine jax"):
        EngineSearch(None, decode, sizes(config_of(MODELS[0])))


def test_a_temperature_of_zero_is_a_search():
    cold = Sampling(temperature=0.0)
    assert obstacles(DecodeConfig(sampling=cold)) == []
    assert obstacles(DecodeConfig(sampling=cold, num_hypotheses=2)) == ["decode.num_hypotheses 2"]


def test_early_stopping_and_gnmt_are_obeyed_without_beams():
    assert obstacles(DecodeConfig(early_stopping="never", length_penalty="gnmt", alpha=0.6)) == []


@pytest.mark.parametrize("name", ["bos_id", "forced_bos_id", "eos_ids", "suppress_ids", "pad_id"])
def test_ids_outside_the_vocabulary_are_refused_by_name(name: str):
    ids = (37,) if name in ("eos_ids", "suppress_ids") else 37
    changes: dict[str, Any] = {name: ids, "renormalize": True, "beam_size": 2}
    with pytest.raises(ValueError, match=rf"decode\.{name} has 37, which is no token id"):
        EngineSearch(None, DecodeConfig(**changes), sizes(config_of(MODELS[0])))


@pytest.mark.slow
@pytest.mark.parametrize("beams", [2, 4, 5])
def test_an_answer_may_end_right_behind_a_forced_token(beams: int, tmp_path: Path):
    """Law: also where CTranslate2 would forbid it, which happens in some rows of this model, and in others not."""
    both = searches(MODELS[2], tmp_path, 13)
    decode = DecodeConfig(beam_size=beams, forced_bos_id=7, max_length_ratio=1.0, max_length_extra=3)
    sources = np.random.default_rng(5).integers(4, 37, (60, 6)).tolist()
    requests = [Request([*source, 3], limit=2 if number % 9 == 0 else None) for number, source in enumerate(sources)]
    search = both.search(decode)
    rows = search.with_early_ends([search.row(*pair) for pair in enumerate(requests)])
    early = [row.early_end is not None for row in rows]
    assert 0 < sum(early) < 60
    assert_same(both.ours(decode, requests), search.generate(None, requests))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Searches:
    return searches(MODELS[1], tmp_path_factory.mktemp("both"), 3)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([5, 37, 3]), "source 0 has 37, which is no token id"),
        (Request([5, 0, 3]), "source 0 has decode.pad_id 0 within: leave it out, or choose engine jax"),
        (Request([5] * 25), "source 0 has 25 tokens, but model.positions.max_positions is 24: shorten it"),
        (Request([5, 3], forced=Forced(beginning=(4,))), "source 0 has terms or a beginning: leave them out"),
        (Request([5, 3], DecodeConfig(repetition_penalty=2.0)), "CTranslate2 does not obey decode.repetition"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(both: Searches, request_: Request, message: str):
    with pytest.raises(ValueError, match=message):
        both.theirs(DecodeConfig(), [request_])


def test_an_answer_beyond_the_positions_of_the_export_is_refused():
    model = MODELS[0]
    with pytest.raises(ValueError, match="an answer may have 2000 tokens, and the export has 1024 positions"):
        EngineSearch(None, DecodeConfig(max_new_tokens=2000), sizes(config_of(model)))


def test_progress_counts_every_source_once(both: Searches):
    seen: list[tuple[str, int, int]] = []
    requests = [Request([5, 3]), Request([]), Request([9, 8, 3])]
    decode = DecodeConfig(max_length_ratio=1.0, max_length_extra=1)
    both.search(decode).generate(None, requests, lambda *counts: seen.append(counts))
    assert seen[-1] == ("decoding", 3, 3)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_eight_bits_are_near_the_scores_of_all(tmp_path: Path):
    """Law: with weights in int8 the scores of greedy answers are those of float32 within a few per cent."""
    model, requests = (
        MODELS[0],
        [Request([*source, 3]) for source in np.random.default_rng(0).integers(4, 37, (9, 8)).tolist()],
    )
    decode = DecodeConfig(max_new_tokens=3)
    both = searches(model, tmp_path, 4, "int8")
    pairs = zip(both.ours(decode, requests), both.theirs(decode, requests), strict=True)
    near = [abs(own[0].score - other[0].score) < 0.1 for own, other in pairs]
    assert sum(near) >= 7


class Foreseen(NamedTuple):
    """A translator that ends behind the forced token 7 with a probability, and else writes 9 and ends with another one."""

    early: float
    later: float
    calls: list[dict[str, Any]]

    def translate_batch(self, sources: Any, prefixes: Any, **options: Any) -> list[Any]:
        self.calls.append(options)
        if options["max_decoding_length"] == 2:  # asked whether a beam may end there
            return [found([["7", "9"], ["7", "3"]], [math.log(self.later) / 2, -1e9])]
        return [found([["7", "9", "3"]], [math.log(self.later) / 3])]

    def score_batch(self, sources: Any, targets: Any, **options: Any) -> list[Any]:
        assert targets == [["2", "7", "3"]]
        return [SimpleNamespace(result=lambda: SimpleNamespace(log_probs=[0.0, math.log(self.early)]))]


def found(tokens: list[list[str]], scores: list[float]) -> Any:
    return SimpleNamespace(result=lambda: SimpleNamespace(hypotheses=tokens, scores=scores))


@pytest.mark.parametrize(
    ("early", "tokens", "score"), [(0.6, [7], math.log(0.6) / 2), (0.1, [7, 9], math.log(0.5 * 0.9) / 3)]
)
def test_an_end_behind_the_forced_token_is_an_answer_of_two_tokens(early: float, tokens: list[int], score: float):
    """By hand: the mean of its two log-probabilities, the forced one's 0; of the others the search knows what is left of 1."""
    decode = DecodeConfig(beam_size=2, length_penalty="average", alpha=1.0, forced_bos_id=7)
    translator = Foreseen(early, 0.5, [])
    ((best,),) = EngineSearch(translator, decode, Sizes(37, 37, None, 64, 20)).generate(None, [Request([5, 3])])
    assert best.tokens == tokens and best.score == pytest.approx(score)
    asked = translator.calls[-1]
    assert (asked["min_decoding_length"], asked["num_hypotheses"], asked["patience"]) == (2, 1, 0.5)


class Tables(NamedTuple):
    """A translator of tables: the first token of a source names the one with the probabilities of each token after another."""

    log_probs: np.ndarray
    calls: list[dict[str, Any]]

    def translate_batch(self, sources: Any, prefixes: Any, **options: Any) -> list[Any]:
        """A beam search that stops as CTranslate2 documents it: at `beam_size` times `patience` answers, or at its limit."""
        self.calls.append({**options, "sources": len(sources)})
        return [self.searched(self.log_probs[int(source[0])], **options) for source in sources]

    @staticmethod
    def searched(
        table: np.ndarray, *, beam_size: int, patience: float, max_decoding_length: int, end_token: Any, **options: Any
    ) -> Any:
        open_, ended = [(0.0, [2])], list[tuple[float, list[int]]]()
        for length in range(1, max_decoding_length + 1):
            all_ = [(total + x, [*ids, i]) for total, ids in open_ for i, x in enumerate(table[ids[-1]])]
            best = sorted(all_, reverse=True)[: 2 * beam_size]
            is_last = length == max_decoding_length
            ended += [one for one in best[:beam_size] if one[1][-1] == int(end_token[0]) or is_last]
            if len(ended) >= round(beam_size * patience):
                break
            open_ = [one for one in best if one[1][-1] != int(end_token[0])][:beam_size]
        scored = [(total / (len(ids) - 1) ** options["length_penalty"], ids[1:]) for total, ids in ended]
        ranked = sorted(scored, reverse=True)[: options["num_hypotheses"]]
        return found([[str(i) for i in ids] for _, ids in ranked], [score for score, _ in ranked])


@pytest.mark.parametrize(
    ("alpha", "finish_at_limit", "num"),
    [(1.0, True, 1), (1.0, True, 3), (0.4, True, 3), (1.0, False, 1), (0.7, False, 1)],
)
def test_open_beams_decide_when_a_search_stops(
    alpha: float, finish_at_limit: bool, num: int, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: a search that sees its open beams, for 149 tables of probabilities. Some answers come after `beam_size` others."""
    rng, room = np.random.default_rng(8), 20
    tables = rng.normal(size=(150, 9, 9)) * rng.uniform(0.5, 3, (150, 1, 1))
    tables[:, :, 3] -= rng.uniform(0, 4, (150, 1))
    tables -= np.log(np.exp(tables).sum(-1, keepdims=True))
    last = lambda words: words[-1] if words else 2  # noqa: E731

    def log_probs(model: Any, params: Any, source: Any, prefixes: Any, width: int) -> np.ndarray:
        rows = tables[source[0]][[last(words) for words in prefixes]]
        return np.repeat(rows[:, None], width, 1)

    monkeypatch.setattr(reference_search, "log_probs", log_probs)
    model: Any = SimpleNamespace(config=MODELS[0])
    changes: dict[str, Any] = {"beam_size": 3, "num_hypotheses": num, "max_new_tokens": room}
    decode = DecodeConfig(alpha=alpha, early_stopping=False, finish_at_limit=finish_at_limit, **changes)
    sizes, requests = Sizes(150, 9, None, 64, 20), [Request([number]) for number in range(1, len(tables))]
    late, early = (
        EngineSearch(Tables(tables, []), dataclasses.replace(decode, early_stopping=stops), sizes).generate(
            None, requests
        )
        for stops in (False, True)
    )
    for request, answers in zip(requests, late, strict=True):
        expected = reference_search.reference_beam(model, None, request.source, room, decode)[:num]
        assert [(tuple(one.tokens), pytest.approx(one.score)) for one in answers] == expected
    assert late != early
