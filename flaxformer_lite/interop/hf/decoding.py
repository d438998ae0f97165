"""How a Hugging Face folder generates: `generation_config.json`, or in older folders `config.json`, as a DecodeConfig, and back."""

from collections.abc import Mapping
from typing import Any

from flaxformer_lite.decode_config import DecodeConfig, Sampling
from flaxformer_lite.interop.hf.settings import GENERATION, SPECIAL_IDS, Settings
from flaxformer_lite.transformer import ModelConfig

NEUTRAL: dict[str, Any] = {
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "begin_suppress_tokens": [],
    "renormalize_logits": False,
    "guidance_scale": 1.0,
    "penalty_alpha": 0.0,
    "force_words_ids": None,
    "constraints": None,
    "sequence_bias": None,
    "stop_strings": None,
    "dola_layers": None,
}
"""Ways to choose tokens that are not implemented, and their value where they do nothing."""

HARMLESS = (
    *("transformers_version", "_from_model_config", "use_cache", "cache_implementation", "cache_config", "max_time"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("remove_invalid_values", "token_healing", "low_memory", "is_assistant", "disable_compile", "compile_config"),
    *("return_legacy_cache", "prefill_chunk_size", "trust_remote_code", "sep_token_id", "unk_token_id", "cls_token_id"),
)
"""Entries that change no token, or only what is returned beside them."""


def decode_config(config: Mapping[str, Any], generation: Mapping[str, Any], model: ModelConfig) -> DecodeConfig:
    """The settings of decoding. Where `generation` is empty, those in `config` count.

    Raises: ValueError that names a way to choose tokens which is not implemented.
    """
    inherited = {name: config[name] for name in SPECIAL_IDS if name in config}
    older = {name: config[name] for name in GENERATION if name in config}
    present = {name: value for name, value in (generation or older).items() if value is not None}
    settings = Settings(inherited | present, f"{'generation_config.json' if generation else 'config.json'}: ")
    if model.num_decoder_layers == 0:
        return DecodeConfig(pad_id=settings.integer("pad_token_id", 0))
    for name, value in NEUTRAL.items():
        settings.only(name, value)
    settings.ignore(*HARMLESS, *SPECIAL_IDS)
    eos = settings.values.get("eos_token_id")
    ends = [int(i) for i in eos] if isinstance(eos, list) else [settings.integer("eos_token_id", DecodeConfig.eos_id)]
    start = settings.integer("bos_token_id", ends[0])
    beam_size = settings.integer("num_beams", 1)
    found = DecodeConfig(
        beam_size=beam_size,
        sampling=sampling(settings, beam_size),
        alpha=settings.number("length_penalty", 1.0),
        early_stopping=early_stopping(settings),
        at_limit="end",
        num_hypotheses=settings.integer("num_return_sequences", 1),
        forced_bos_id=settings.optional_integer("forced_bos_token_id"),
        forced_eos_id=settings.optional_integer("forced_eos_token_id"),
        suppress_ids=suppress_ids(settings, ends),
        no_repeat_ngram=settings.integer("no_repeat_ngram_size", 0),
        repetition_penalty=settings.number("repetition_penalty", 1.0),
        pad_id=settings.integer("pad_token_id", ends[0]),
        bos_id=settings.integer("decoder_start_token_id", start) if model.num_encoder_layers else start,
        eos_id=ends[0],
        more_eos_ids=tuple(ends[1:]),
        **lengths(settings, model),
    )
    settings.finish((), {})
    return found


def lengths(settings: Settings, model: ModelConfig) -> dict[str, Any]:
    """How long answers may and must be; theirs counts what an answer starts from.

    Raises: ValueError where a minimum counts the prompt too.
    """
    longest, least = settings.optional_integer("max_length"), settings.integer("min_length", 0)
    found: dict[str, Any] = {
        "max_new_tokens": settings.optional_integer("max_new_tokens"),
        "min_new_tokens": settings.integer("min_new_tokens", 0),
    }
    if model.num_encoder_layers == 0:
        if least > 0:
            raise settings.wrong("min_length", "it counts the prompt, which is not implemented; min_new_tokens is")
        return found
    if longest is not None and found["max_new_tokens"] is None:
        found["max_new_tokens"] = max(1, longest - 1)
    return found | {"min_new_tokens": max(found["min_new_tokens"], least - 1)}


def sampling(settings: Settings, beam_size: int) -> Sampling | None:
    """How tokens are drawn, where the folder says that they are."""
    drawn = settings.flag("do_sample", False)
    settings.ignore("temperature", "top_k", "top_p", "min_p")
    if not drawn:
        return None
    if beam_size > 1:
        raise settings.wrong("do_sample", f"drawing tokens with num_beams {beam_size} is not implemented")
    return Sampling(
        temperature=settings.number("temperature", 1.0),
        top_k=settings.integer("top_k", 50),
        top_p=settings.number("top_p", 1.0),
        min_p=settings.number("min_p", 0.0),
    )


def early_stopping(settings: Settings) -> bool:
    """Whether search ends with the first answers. Theirs may also be "never"."""
    if settings.values.get("early_stopping") == "never":
        raise settings.wrong("early_stopping", "only true and false are implemented")
    return settings.flag("early_stopping", False)


def suppress_ids(settings: Settings, ends: list[int]) -> tuple[int, ...]:
    """Tokens that are never chosen. A forbidden end is none (so does the library)."""
    words = settings.items("bad_words_ids")
    if any(not isinstance(word, list) or len(word) != 1 for word in words):
        raise settings.wrong("bad_words_ids", "only words of one token are implemented")
    bad = {int(word[0]) for word in words} - set(ends)
    return tuple(sorted(bad | {int(i) for i in settings.items("suppress_tokens")}))


# Back ------------------------------------------------------------------------------------------------------------------


def special_ids(decode: DecodeConfig, model: ModelConfig) -> dict[str, Any]:
    """The special ids, as both files have them."""
    if model.num_decoder_layers == 0:
        return {"pad_token_id": decode.pad_id}
    ends: Any = [decode.eos_id, *decode.more_eos_ids] if decode.more_eos_ids else decode.eos_id
    start = "decoder_start_token_id" if model.num_encoder_layers else "bos_token_id"
    return {"pad_token_id": decode.pad_id, "eos_token_id": ends, start: decode.bos_id}


def generation_config(decode: DecodeConfig, model: ModelConfig) -> dict[str, Any]:
    """`generation_config.json` for such settings: `decode_config` backwards.

    Raises: ValueError for a way to score answers that is not theirs.
    """
    if decode.length_penalty == "gnmt":
        raise ValueError("decode.length_penalty is 'gnmt' (there: average, with any exponent)")
    found = special_ids(decode, model) | {
        "num_beams": decode.beam_size,
        "num_return_sequences": decode.num_hypotheses,
        "length_penalty": decode.alpha if decode.length_penalty == "average" else 0.0,
        "early_stopping": decode.early_stopping,
        "do_sample": decode.sampling is not None,
        "max_new_tokens": decode.max_new_tokens,
        "min_new_tokens": decode.min_new_tokens,
        "forced_bos_token_id": decode.forced_bos_id,
        "forced_eos_token_id": decode.forced_eos_id,
        "bad_words_ids": [[i] for i in decode.suppress_ids] or None,
        "no_repeat_ngram_size": decode.no_repeat_ngram,
        "repetition_penalty": decode.repetition_penalty,
    }
    if decode.sampling is not None:
        drawn = decode.sampling
        found |= {"temperature": drawn.temperature, "top_k": drawn.top_k, "top_p": drawn.top_p, "min_p": drawn.min_p}
    return {name: value for name, value in found.items() if value is not None}
