"""The cases of the four systems that train, decode, follow a schedule or raise: the companions of `seed_cases.py`."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.core.model import Inputs, ModelConfig, Transformer
from flaxformer_lite.core.optim import AdamW, Noam, OptimizerConfig
from flaxformer_lite.core.search.beam import BEAM_SEARCH
from flaxformer_lite.core.search.greedy import GREEDY_SEARCH
from flaxformer_lite.core.search.search import Decoded, SearchInputs, SearchSettings
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.interop.name_map import from_params
from flaxformer_lite.interop.systems.bert_attention import AttentionLayer
from tests.support.reference_search import search_whole
from tests.support.seed_cases import Arrays, Case, smoothed_loss
from tests.support.seed_models import Whole

# Training -------------------------------------------------------------------------------------------------------------


def warmup(case: Case) -> Arrays:
    found = {}
    for k, spec in enumerate(case.config["specs"]):
        schedule = Noam(factor=spec["factor"], warmup_steps=spec["warmup_steps"])
        rate = schedule.build(total_steps=spec["steps"], d_model=spec["d_model"])
        found[f"out/lr_{k}"] = jax.vmap(rate)(jnp.arange(spec["steps"]))
    return found


def training_steps(case: Case) -> Arrays:
    whole, c = Whole.of(case), case.config
    config = OptimizerConfig(
        algorithm=AdamW(b1=c["betas"][0], b2=c["betas"][1], eps=c["eps"]),
        schedule=Noam(factor=c["warmup_factor"], warmup_steps=c["warmup_steps"]),
        clip_norm=c["grad_clipping"] or None,
    )
    sizes = {"total_steps": c["steps"], "d_model": c["d_model"]}
    optimizer, rate = config.build(**sizes), config.rate(**sizes)

    @jax.jit
    def step(params: Any, state: Any, source: Any, target: Any) -> tuple[Any, Any, Any]:
        def loss(params: Any) -> Any:
            read, labels, pad = target[:, :-1], target[:, 1:], c["pad_idx"]
            inputs = Inputs(source, read, source != pad, read != pad)
            logits = Transformer(whole.config).apply({"params": params}, inputs).logits
            return smoothed_loss(logits, labels, c["label_smoothing"], pad)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    params, found = whole.params, {}
    state = optimizer.init(params)
    for i in range(c["steps"]):
        batch = jnp.asarray(case.inputs[f"src_{i}"]), jnp.asarray(case.inputs[f"target_{i}"])
        params, state, found[f"out/loss_{i}"] = step(params, state, *batch)
        found[f"out/lr_{i}"] = rate(i)
        found |= {f"out/after_{i + 1}/{name}": x for name, x in from_params(params, whole.names).items()}
    return found


# Decoding -------------------------------------------------------------------------------------------------------------


def cached_decoding(case: Case) -> Arrays:
    whole, c = Whole.of(case), case.config
    model, variables = Transformer(whole.config), {"params": whole.params}
    source, target = jnp.asarray(case.inputs["src"]), jnp.asarray(case.inputs["tgt"])
    source_mask = source != c["pad_idx"]
    memory = model.apply(variables, Inputs(source, source_mask=source_mask), method="encode")
    cache = model.apply(variables, memory, target.shape[1], method="start_cache")
    step = jax.jit(lambda t, i, cache: model.apply(variables, t, i, cache, source_mask, method="decode_step"))
    logits = []
    for i in range(target.shape[1]):
        scores, cache = step(target[:, i : i + 1], jnp.asarray(i), cache)
        logits.append(scores)
    found = {"out/memory": memory, "out/logits": jnp.concatenate(logits, 1)}
    for i, layer in enumerate(cache):
        for part, (key, value) in (("self", layer.own), ("cross", layer.memory)):
            found[f"out/cache_{i}_{part}_key"] = key.transpose(0, 1, 3, 2)
            found[f"out/cache_{i}_{part}_value"] = value
    return found


def decoding(case: Case) -> Arrays:
    whole, c = Whole.of(case), case.config
    found: Arrays = {}
    for run in c["runs"]:
        name, most, greedily = f"out/{run['label']}", run["max_gen_len"], run["mode"] == "greedy_search"
        config = decode_config(c, run)
        tokens, lengths, scores = search(whole, case.inputs["src"], most, config)
        keep = run["scorer"].get("num_beam_hyps_to_keep", 1)
        answers = [[t[:n].tolist() for t, n in zip(*row, strict=True)] for row in zip(tokens, lengths, strict=True)]
        kept = [sentence(t, most, config) for answer in answers for t in answer[:keep]]
        found[f"{name}/tokens"] = rows(kept, fill=config.pad_id)
        if not greedily:
            flat = [[config.bos_id, *t] for answer in answers for t in answer]
            shape = (len(answers), run["num_beams"])
            hypotheses = rows(flat, fill=-1)
            found[f"{name}/hyp_tokens"] = hypotheses.reshape(*shape, hypotheses.shape[-1])
            found[f"{name}/hyp_lengths"] = np.array([len(t) for t in flat]).reshape(shape)
            found[f"{name}/hyp_scores"] = scores
    return found


def decode_config(c: Mapping[str, Any], run: Mapping[str, Any]) -> DecodeConfig:
    """The search of a run. The lengths are given by `max_gen_len`, which counts the BOS."""
    beams, scorer = (1 if run["mode"] == "greedy_search" else run["num_beams"]), run["scorer"]
    assert scorer.keys() <= {"length_penalty", "do_early_stopping", "num_beam_hyps_to_keep"}, scorer
    return DecodeConfig(
        beam_size=beams,
        num_hypotheses=beams,
        alpha=scorer.get("length_penalty", 1.0),
        early_stopping=scorer.get("do_early_stopping", True),
        pad_id=c["pad_idx"],
        bos_id=c["bos_idx"],
        eos_ids=(c["eos_idx"],),
    )


def search(whole: Whole, sources: Any, most: int, config: DecodeConfig) -> Decoded:
    """The answers to a matrix of sources, just as it stands."""
    sources = jnp.asarray(sources)
    method = BEAM_SEARCH if config.beam_size > 1 else GREEDY_SEARCH
    limits = jnp.full(len(sources), most - 1, jnp.int32)
    found = jax.jit(
        lambda variables: search_whole(
            method,
            (Transformer(whole.config),),
            (variables,),
            SearchInputs(sources, sources != config.pad_id, limits),
            SearchSettings(config, most - 1),
        )
    )({"params": whole.params})
    return Decoded(*map(np.asarray, found))


def sentence(tokens: list[int], most: int, config: DecodeConfig) -> list[int]:
    """BOS, the tokens, and EOS where there is room for it."""
    return [config.bos_id, *tokens, config.eos_id][:most]


def rows(sentences: list[list[int]], *, fill: int) -> np.ndarray:
    width = max(map(len, sentences))
    return np.array([s + [fill] * (width - len(s)) for s in sentences])


# Errors ---------------------------------------------------------------------------------------------------------------


def attend(from_shape: tuple[int, ...], to_shape: tuple[int, ...], **options: Any) -> None:
    sizes = {name: options.pop(name) for name in ("batch_size", "from_seq_length", "to_seq_length") if name in options}
    AttentionLayer(2, 3, **options).init(jax.random.key(0), jnp.ones(from_shape), jnp.ones(to_shape), **sizes)


def encode(inputs: Inputs, **settings: Any) -> None:
    settings = {"d_model": 12, "num_heads": 3, "d_ff": 5, "num_encoder_layers": 1, "num_decoder_layers": 0} | settings
    Transformer(ModelConfig(**settings)).init(jax.random.key(0), inputs)


def numbers(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", text)]


def shapes(text: str) -> list[tuple[int, ...]]:
    """What stands in brackets with a comma in it, as shapes."""
    return [tuple(numbers(found)) for found in re.findall(r"\((\d+,[\d, ]*)\)", text)]


def raise_like(name: str, text: str, how: str) -> None:
    """Does what raised `text` there, with the sizes that it or `how` tells. Raises: KeyError for an unknown name."""
    tokens = jnp.ones((2, 3), jnp.int32)
    told = (shapes(text) or shapes(how) or [()]) * 2
    options: dict[str, Callable[[], None]] = {
        "rank1": lambda: attend(told[0], told[0]),
        "rank4": lambda: attend(told[0], told[0]),
        "rank_mismatch": lambda: attend(*shapes(how)[:2]),
        "rank2_without_sizes": lambda: attend(told[0], told[0]),
        "rank2_without_to_seq_length": lambda: attend((6, 4), (6, 4), batch_size=2, from_seq_length=3),
        "reshape_to_matrix_rank1": lambda: attend(told[0], told[0]),
        "unsupported_activation": lambda: attend((2, 3, 4), (2, 3, 4), query_act=text.split()[-1]),
        "hidden_not_multiple_of_heads": lambda: encode(
            Inputs(tokens), vocab_size=7, d_model=numbers(text)[0], num_heads=numbers(text)[1]
        ),
        "input_width": lambda: encode(
            Inputs(jnp.ones((2, 3, numbers(text)[0]))), vocab_size=0, head=None, d_model=numbers(text)[1], num_heads=1
        ),
        "input_ids_rank3": lambda: encode(Inputs(jnp.ones(told[0], jnp.int32)), vocab_size=7),
        "no_token_type_ids": lambda: encode(Inputs(tokens), vocab_size=7, num_token_types=2),
    }
    assert name in options, f"no way is known to raise {name!r}"
    options[name]()


def facts(text: str) -> set[str]:
    """What an error tells: numbers, and names in backquotes or at the end. What was expected instead is worded freely here."""
    told = re.sub(r"in scope ``|is not equal to the expected rank.*|:0|if`.*", "", text)
    ours = {"input_ids": "source_tokens", "token_type_ids": "token_types"}
    names = {ours.get(found, found) for found in re.findall(r"`(\w+)`", told)}
    return set(re.findall(r"\d+", told)) | names | ({text.split()[-1]} if text.startswith("Unsupported") else set())


def errors(case: Case) -> Arrays:
    """The errors that were raised, checked here: an error has no number to compare. Each counts as an entry."""
    assert case.config["errors"], "no error to raise"
    for name, (kind, text) in case.config["errors"].items():
        assert kind == "ValueError", f"{name}: this package raises nothing but ValueError, not {kind}"
        with pytest.raises(ValueError) as raised:
            raise_like(name, text, case.config["raised_by"][name])
        missing = [fact for fact in facts(text) if fact not in re.findall(r"\w+", str(raised.value))]
        assert not missing, f"{name}: {raised.value} does not tell {missing}"
    return {}


RUNS: dict[tuple[str, str], Callable[[Case], Arrays]] = {
    ("001", "WarmupScheduler"): warmup,
    ("001", "training steps"): training_steps,
    ("001", "cached decoding"): cached_decoding,
    ("001", "decoding"): decoding,
    ("002", "errors"): errors,
}
