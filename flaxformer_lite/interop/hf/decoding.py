"""How a Hugging Face folder generates: `generation_config.json`, or in older folders `config.json`, as a DecodeConfig, and back."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from flaxformer_lite.inference.config import DecodeConfig, Sampling
from flaxformer_lite.interop.hf.options import GENERATION, SPECIAL_IDS, SpecialIds
from flaxformer_lite.interop.options import Options
from flaxformer_lite.model.config import ModelConfig

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


def decode_config(
    config: Mapping[str, Any], generation: Mapping[str, Any], model: ModelConfig, special: SpecialIds
) -> DecodeConfig:
    """The options of decoding. Where `generation` is empty, those in `config` count. Special ids that neither says are `special`.

    Raises: ValueError that names a way to choose tokens which is not implemented.
    """
    inherited = {name: config[name] for name in SPECIAL_IDS if name in config}
    older = {name: config[name] for name in GENERATION if name in config}
    present = {name: value for name, value in (generation or older).items() if value is not None}
    options = Options(inherited | present, f"{'generation_config.json' if generation else 'config.json'}: ")
    pad = one_id(options, "pad_token_id", special.pad)
    if model.num_decoder_layers == 0:
        return DecodeConfig(pad_id=(special.pad or 0) if pad is None else pad)
    for name, value in NEUTRAL.items():
        options.only(name, value)
    options.ignore(*HARMLESS, *SPECIAL_IDS)
    end = options.values.get("eos_token_id", special.eos)
    ends = () if end is None else token_ids(options, "eos_token_id", end)
    beam_size = options.integer("num_beams", 1)
    found = DecodeConfig(
        beam_size=beam_size,
        sampling=sampling(options, beam_size),
        alpha=options.number("length_penalty", 1.0),
        early_stopping=early_stopping(options),
        at_limit="end",
        num_hypotheses=options.integer("num_return_sequences", 1),
        forced_bos_id=forced_bos_id(options, model),
        forced_eos_id=options.optional_integer("forced_eos_token_id"),
        suppress_ids=suppress_ids(options, ends),
        no_repeat_ngram=options.integer("no_repeat_ngram_size", 0),
        repetition_penalty=options.number("repetition_penalty", 1.0),
        renormalize=options.flag("renormalize_logits", False),
        pad_id=pad if pad is not None else next(iter(ends), 0),
        bos_id=start_id(options, model, special, ends),
        eos_id=next(iter(ends), None),
        more_eos_ids=ends[1:],
        **lengths(options, model),
    )
    options.finish((), {})
    return found


def token_ids(options: Options, name: str, value: Any) -> tuple[int, ...]:
    """The value of the option, a token id or several. Raises: ValueError where it is something else."""
    found = tuple(value) if isinstance(value, list) else (value,)
    if not found or any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in found):
        raise options.wrong(name, "it should be a token id, at least 0, or a list of such, or null for none")
    return found


def one_id(options: Options, name: str, absent: int | None) -> int | None:
    """A token id; None where there is none, which the first Llama folders write as -1."""
    value = options.values.get(name, absent)
    if value is None or value == -1:
        return None
    if isinstance(value, list):
        raise options.wrong(name, "it should be one token id, at least 0, or null for none")
    return token_ids(options, name, value)[0]


def start_id(options: Options, model: ModelConfig, special: SpecialIds, ends: tuple[int, ...]) -> int:
    """What answers start from; a prompt without tokens starts from an end where there is no other id.

    Raises: ValueError where nothing says it.
    """
    found = one_id(options, "bos_token_id", special.bos)
    if model.num_encoder_layers:
        own = one_id(options, "decoder_start_token_id", special.start)
        found = found if own is None else own
    elif found is None:
        found = next(iter(ends), None)
    if found is None:
        name = "decoder_start_token_id" if model.num_encoder_layers else "bos_token_id"
        raise options.wrong(name, "an answer starts from it, or from bos_token_id or eos_token_id: give a token id")
    return found


def forced_bos_id(options: Options, model: ModelConfig) -> int | None:
    """The first token of every answer. Raises: ValueError where the library would force it after prompts of one token only."""
    if model.num_encoder_layers == 0 and options.has("forced_bos_token_id"):
        raise options.wrong(
            "forced_bos_token_id", "the library forces it after prompts of one token only; leave it out"
        )
    return one_id(options, "forced_bos_token_id", None)


def notes(config: Mapping[str, Any], generation: Mapping[str, Any], model: ModelConfig) -> list[str]:
    """What such a folder says that the options of decoding do not."""
    longest = (generation or config).get("max_length")
    if longest is None or model.num_encoder_layers or not model.num_decoder_layers:
        return []
    where = "generation_config.json" if generation else "config.json"
    return [
        f"{where}: max_length is {longest} and counts the prompt; it was left out, decode.max_new_tokens is for that"
    ]


def lengths(options: Options, model: ModelConfig) -> dict[str, Any]:
    """How long answers may and must be; theirs counts what an answer starts from.

    Raises: ValueError where a minimum counts the prompt too.
    """
    longest, least = options.optional_integer("max_length"), options.integer("min_length", 0)
    found: dict[str, Any] = {
        "max_new_tokens": options.optional_integer("max_new_tokens"),
        "min_new_tokens": options.integer("min_new_tokens", 0),
    }
    if model.num_encoder_layers == 0:
        if least > 0:
            raise options.wrong("min_length", "it counts the prompt, which is not implemented; min_new_tokens is")
        return found
    if longest is not None and found["max_new_tokens"] is None:
        found["max_new_tokens"] = max(1, longest - 1)
    return found | {"min_new_tokens": max(found["min_new_tokens"], least - 1)}


def sampling(options: Options, beam_size: int) -> Sampling | None:
    """How tokens are drawn, where the folder says that they are."""
    drawn = options.flag("do_sample", False)
    options.ignore("temperature", "top_k", "top_p", "min_p")
    if not drawn:
        return None
    if beam_size > 1:
        raise options.wrong("do_sample", f"drawing tokens with num_beams {beam_size} is not implemented")
    return Sampling(
        temperature=options.number("temperature", 1.0),
        top_k=options.integer("top_k", 50),
        top_p=options.number("top_p", 1.0),
        min_p=options.number("min_p", 0.0),
    )


def early_stopping(options: Options) -> bool | Literal["never"]:
    """When a search with beams ends, as `DecodeConfig` has it."""
    return "never" if options.values.get("early_stopping") == "never" else options.flag("early_stopping", False)


def suppress_ids(options: Options, ends: Collection[int]) -> tuple[int, ...]:
    """Tokens that are never chosen. A forbidden end is none (so does the library)."""
    words = options.items("bad_words_ids")
    if any(not isinstance(word, list) or len(word) != 1 for word in words):
        raise options.wrong("bad_words_ids", "only words of one token are implemented")
    bad = {i for word in words for i in token_ids(options, "bad_words_ids", word)} - set(ends)
    suppressed = options.items("suppress_tokens")
    return tuple(sorted(bad.union(token_ids(options, "suppress_tokens", suppressed) if suppressed else ())))


# Back ------------------------------------------------------------------------------------------------------------------


def special_ids(decode: DecodeConfig, model: ModelConfig) -> dict[str, Any]:
    """The special ids, as both files have them."""
    if model.num_decoder_layers == 0:
        return {"pad_token_id": decode.pad_id}
    ends: Any = [decode.eos_id, *decode.more_eos_ids] if decode.more_eos_ids else decode.eos_id
    start = "decoder_start_token_id" if model.num_encoder_layers else "bos_token_id"
    return {"pad_token_id": decode.pad_id, "eos_token_id": ends, start: decode.bos_id}


def generation_config(decode: DecodeConfig, model: ModelConfig, longest_source: int) -> dict[str, Any]:
    """`generation_config.json` for such options: `decode_config` backwards.

    There is no length that depends on the source there: the limit is that of the longest one.

    Raises: ValueError for a way to score answers that is not theirs.
    """
    if decode.length_penalty == "gnmt":
        raise ValueError("decode.length_penalty is 'gnmt' (there: average, with any exponent)")
    drawn = decode.sampling if decode.sampling is not None and decode.sampling.temperature else None
    longest = decode.max_new_tokens
    if model.num_encoder_layers:
        longest = decode.max_length(longest_source)
        longest = min(longest, model.positions.max_positions or longest)
    found = special_ids(decode, model) | {
        "num_beams": decode.beam_size,
        "num_return_sequences": decode.num_hypotheses,
        "length_penalty": decode.alpha if decode.length_penalty == "average" else 0.0,
        "early_stopping": decode.early_stopping,
        "do_sample": drawn is not None,
        "max_new_tokens": longest,
        "min_new_tokens": decode.min_new_tokens,
        "forced_bos_token_id": decode.forced_bos_id,
        "forced_eos_token_id": decode.forced_eos_id,
        "suppress_tokens": list(decode.suppress_ids) or None,
        "no_repeat_ngram_size": decode.no_repeat_ngram,
        "repetition_penalty": decode.repetition_penalty,
        "renormalize_logits": decode.renormalize,
    }
    if drawn is not None:
        found |= {"temperature": drawn.temperature, "top_k": drawn.top_k, "top_p": drawn.top_p, "min_p": drawn.min_p}
    return {name: value for name, value in found.items() if value is not None}


def export_notes(decode: DecodeConfig) -> list[str]:
    """What such options say that the file does not."""
    if decode.at_limit == "end" or decode.beam_size == 1:
        return []
    return [
        f"decode.at_limit is {decode.at_limit!r}: there, beams at the limit of length count as ended ('end' here), so that the "
        "best of answers that reach it may be another"
    ]
