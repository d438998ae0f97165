"""Decode settings, prompts and models drawn by a seed, and our answers: compared with those of Hugging Face's library.

A group is one model and one set of settings, hence one compiled program for its rows. A row has a prompt (or source), a limit of
its own, and a repetition penalty. Everything is JSON, so that a group can be recorded with its answers.
"""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.core.model.transformer import Transformer
from flaxformer_lite.core.search import DecodeConfig, Request, Sampling
from flaxformer_lite.core.search.decoder import Decoder, with_setting_numbers
from flaxformer_lite.core.search.sampling import warp_logits
from flaxformer_lite.core.search.search import SearchInputs
from flaxformer_lite.interop.hf.decoding import decode_config
from flaxformer_lite.interop.hf.options import UsualIds
from tests.support.hf_folders import DATA, imported
from tests.support.paths import FIXTURES

RECORDED = FIXTURES / "hf" / "drawn_decoding.json"
MODELS = (
    *("marian/shared", "gpt2/tied", "bart/plain", "llama/gqa_llama3"),
    *("t5_1_1/resaved", "mistral/window", "gemma3/plain"),
)
ROWS = 8
VOCAB = 41

Group = dict[str, Any]


def draw_group(seed: int) -> Group:
    """Returns the model, its options by the names of `generation_config.json`, and the rows of a seed."""
    rng = np.random.default_rng([39, seed])
    label = MODELS[seed % len(MODELS)]
    files = [json.loads((DATA / label / name).read_text()) for name in ("config.json", "generation_config.json")]
    config = files[0] | files[1]
    answers_sources = bool(config.get("is_encoder_decoder"))

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    options: dict[str, Any] = {name: config[name] for name in names if config.get(name) is not None}
    special = set(options.values())
    words = [i for i in range(VOCAB) if i not in special]
    eos = options["eos_token_id"]
    options["eos_token_id"] = one_of(eos, eos, eos, [eos, *some(rng, words, 1)], some(rng, words, 3), None)
    beams = options["num_beams"] = one_of(1, 1, 1, 2, 3, 4, 6)
    longest = options["max_new_tokens"] = one_of(1, 1, 2, 2, 3, 5, 8, 13)
    if beams > 1:
        options["num_return_sequences"] = one_of(1, 2, beams)
        options["early_stopping"] = one_of(True, False, "never")
        options["length_penalty"] = one_of(1.0, 1.0, 0.0, 0.6, 2.0, -1.0)
    options["min_new_tokens"] = one_of(0, 0, 0, 1, 2, longest, longest + 1)
    options["no_repeat_ngram_size"] = one_of(0, 0, 1, 2, 3, 5, 40)
    options["renormalize_logits"] = one_of(False, True)
    options["suppress_tokens"] = one_of(None, None, [], some(rng, range(VOCAB), 3))
    options["bad_words_ids"] = one_of(None, None, [[i] for i in some(rng, range(VOCAB), 2)])
    free = [i for i in words if i not in (options["suppress_tokens"] or ())]
    options["forced_eos_token_id"] = one_of(None, None, eos, some(rng, free, 1)[0])
    if answers_sources:
        options["forced_bos_token_id"] = one_of(None, None, some(rng, free, 1)[0])
    if options["forced_eos_token_id"] in (options["suppress_tokens"] or ()):
        options["forced_eos_token_id"] = None  # with the library the last token is then id 0, whatever it is

    shortest, width = one_of((1, 8), (1, 8), (9, 13))
    rows = []
    for _ in range(ROWS):
        few = some(rng, words, one_of(3, 8, 20))  # so that tokens repeat
        prompt = [int(i) for i in rng.choice(few, rng.integers(shortest, width + 1))]
        if answers_sources:
            prompt[-1] = eos
        limit = int(rng.integers(1, longest + 1)) if rng.random() < 0.3 else longest
        rows.append({"prompt": prompt, "limit": limit, "penalty": one_of(1.0, 1.0, 1.3, 0.7)})
    options = {name: value for name, value in options.items() if value is not None or name == "eos_token_id"}
    return {"seed": seed, "model": label, "options": options, "rows": rows}


def some(rng: np.random.Generator, values: Any, number: int) -> list[int]:
    """Returns some of the values, in a drawn order."""
    return [int(i) for i in rng.choice(list(values), number, replace=False)]


def ends_of(options: dict[str, Any]) -> list[int]:
    """Returns the end ids of a group's options."""
    ends = options["eos_token_id"]
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def our_settings(group: Group) -> DecodeConfig:
    """Returns the settings as an imported folder has them."""
    model = imported(group["model"]).model
    return decode_config({}, group["options"], model, UsualIds())[0]


def our_answers(group: Group, streamed: bool = False) -> list[list[tuple[list[int], float]]]:
    """Returns the answers to each row, best first, with their scores; `streamed` alone: those of the first row, chunk by chunk."""
    found, settings = imported(group["model"]), our_settings(group)
    decoder, variables, rows = Decoder(Transformer(found.model), settings), {"params": found.params}, group["rows"]
    if streamed:
        chunks = decoder.stream(variables, Request(rows[0]["prompt"], limit=rows[0]["limit"]))
        return [[([token for chunk in chunks for token in chunk], 0.0)]]
    configs = [dataclasses.replace(settings, repetition_penalty=row["penalty"]) for row in rows]
    asked = [Request(row["prompt"], config, row["limit"]) for row, config in zip(rows, configs, strict=True)]
    answers = decoder.generate(variables, asked)
    return [[(answer.tokens, answer.score) for answer in row] for row in answers]


def differences(group: Group) -> list[str]:
    """Returns a line for each row whose answers are not those of `group["answers"]`; None stands for a row that is not compared."""
    wrong = []
    compared = [(i, expected) for i, expected in enumerate(group["answers"]) if expected is not None]
    found = our_answers(group)
    for i, expected in compared:
        tokens = [answer for answer, _ in found[i]]
        scores = [score for _, score in found[i]]
        same = tokens == [answer for answer, _ in expected]
        if same and group["options"]["num_beams"] > 1:
            same = np.allclose(scores, [score for _, score in expected], rtol=1e-4, atol=1e-4)
        if not same:
            wrong.append(
                f"seed {group['seed']}, row {i}: {group['model']} {group['options']} {group['rows'][i]}\n"
                f"    theirs {expected}\n    ours   {found[i]}"
            )
    return wrong


# Filters of sampling ------------------------------------------------------------------------------------------------------


def draw_filter(seed: int) -> dict[str, Any]:
    """Returns logits, with equal ones among them and perhaps suppressed ones, and the settings of sampling, of a seed."""
    rng = np.random.default_rng([40, seed])
    logits = np.round(rng.normal(size=VOCAB) * 3 * rng.random() * 4) / 4
    logits[rng.random(VOCAB) < (0.3 if rng.random() < 0.3 else 0.0)] = -np.inf

    def one_of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    settings = {
        "temperature": one_of(1.0, 0.5, 1.7, float(np.round(rng.random() + 0.1, 2))),
        "top_k": one_of(0, 0, 1, 5, VOCAB - 1, VOCAB, VOCAB + 1),
        "top_p": one_of(
            1.0, 0.999, 1e-4, float(np.round(rng.random() + 1e-3, 3)), float(np.round(rng.random(), 3) + 1e-3)
        ),
        "min_p": one_of(0.0, 0.0, 1.0, 0.05, float(np.round(rng.random(), 3))),
    }
    settings["top_p"] = min(settings["top_p"], 1.0)
    return {"seed": seed, "logits": [None if x == -np.inf else float(x) for x in logits], "settings": settings}


def logits_of(case: dict[str, Any]) -> np.ndarray:
    """Returns the logits of a drawn filter."""
    return np.array([-np.inf if x is None else x for x in case["logits"]], np.float32)


def our_kept(case: dict[str, Any]) -> list[int]:
    """Returns the ids that are left to draw from."""
    config = DecodeConfig(sampling=Sampling(**case["settings"]))
    inputs = SearchInputs(np.zeros((1, 1)), None, None)  # type: ignore[arg-type]  # only its rows count
    rows = with_setting_numbers(inputs, [config], jax.random.split(jax.random.key(0), 1)).sampling
    found = filtered(jnp.asarray(logits_of(case))[None], rows, k=case["settings"]["top_k"])
    return np.flatnonzero(np.asarray(found)[0] > -np.inf).tolist()


filtered = jax.jit(warp_logits, static_argnames="k")
