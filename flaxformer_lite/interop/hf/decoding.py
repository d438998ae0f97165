"""Settings of decoding in a Hugging Face folder, as a DecodeConfig and back.

They are in `generation_config.json`, or in older folders in `config.json`. Most are rows of a two-way table; those that depend on
the model, and on each other, are functions.
"""

from collections.abc import Collection, Mapping
from typing import Any

from flaxformer_lite.inference import DecodeConfig, Sampling
from flaxformer_lite.interop.hf.options import GENERATION, SPECIAL_IDS, SpecialIds
from flaxformer_lite.interop.option_table import OPTIONAL_INTEGER, Kind, option, read_table, write_table
from flaxformer_lite.interop.options import Options
from flaxformer_lite.model import ModelConfig

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
"""Options of decoding that are not implemented, and the value that turns them off."""

HARMLESS = (
    *("transformers_version", "_from_model_config", "use_cache", "cache_implementation", "cache_config", "max_time"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("remove_invalid_values", "token_healing", "low_memory", "is_assistant", "disable_compile", "compile_config"),
    *("return_legacy_cache", "prefill_chunk_size", "trust_remote_code", "sep_token_id", "unk_token_id", "cls_token_id"),
)
"""Options that change no token."""


TEMPLATE = DecodeConfig(early_stopping=False, at_limit="end")
"""The library's defaults."""

EARLY_STOPPING = Kind(
    lambda options, name, default: (
        "never" if options.values.get(name) == "never" else options.flag(name, default)  # true, false or "never"
    )
)

TABLE = (
    option("num_beams", "beam_size"),
    option("length_penalty", "alpha"),
    option("early_stopping", "early_stopping", kind=EARLY_STOPPING),
    option("num_return_sequences", "num_hypotheses"),
    option("forced_eos_token_id", "forced_eos_id", kind=OPTIONAL_INTEGER),
    option("no_repeat_ngram_size", "no_repeat_ngram"),
    option("repetition_penalty", "repetition_penalty"),
    option("renormalize_logits", "renormalize"),
)

SAMPLING_TABLE = (
    option("temperature", "temperature"),
    option("top_k", "top_k"),
    option("top_p", "top_p"),
    option("min_p", "min_p"),
)


def decode_config(
    config: Mapping[str, Any], generation: Mapping[str, Any], model: ModelConfig, special: SpecialIds
) -> DecodeConfig:
    """Returns the settings of decoding.

    Args:
        config: `config.json`. Its options count only if `generation` is empty.
        generation: `generation_config.json`.
        model: The model of the folder.
        special: The special ids for those that neither file has.

    Raises: ValueError that names an option that is not implemented.
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
    draft = read_table(TABLE, options, TEMPLATE)
    draft["sampling"] = read_sampling(options, draft["beam_size"])
    draft["max_new_tokens"], draft["min_new_tokens"] = read_lengths(options, model)
    draft["suppress_ids"] = suppress_ids(options, ends)
    draft["forced_bos_id"] = forced_bos_id(options, model)
    draft["pad_id"] = pad if pad is not None else next(iter(ends), 0)
    draft["bos_id"] = start_id(options, model, special, ends)
    draft["eos_ids"] = ends
    options.finish()
    found: DecodeConfig = draft.build()
    return found


def token_ids(options: Options, name: str, value: Any) -> tuple[int, ...]:
    """Returns the value of an option: one token id or several. Raises: ValueError for another value."""
    found = tuple(value) if isinstance(value, list) else (value,)
    if not found or any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in found):
        raise options.wrong(name, "it should be a token id, at least 0, or a list of such, or null for none")
    return found


def one_id(options: Options, name: str, absent: int | None) -> int | None:
    """Returns a token id; None where there is none, which the first Llama folders write as -1."""
    value = options.values.get(name, absent)
    if value is None or value == -1:
        return None
    if isinstance(value, list):
        raise options.wrong(name, "it should be one token id, at least 0, or null for none")
    return token_ids(options, name, value)[0]


def start_id(options: Options, model: ModelConfig, special: SpecialIds, ends: tuple[int, ...]) -> int | None:
    """Returns the first token of answers. A prompt without tokens starts from an end token if there is no other id.

    A decoder alone may have none: only a prompt without tokens needs it.

    Raises: ValueError where no option has it.
    """
    found = one_id(options, "bos_token_id", special.bos)
    if model.num_encoder_layers:
        own = one_id(options, "decoder_start_token_id", special.start)
        found = found if own is None else own
        if found is None:
            raise options.wrong(
                "decoder_start_token_id", "an answer starts from it, or from bos_token_id: set one to a token id"
            )
    return next(iter(ends), None) if found is None else found


def forced_bos_id(options: Options, model: ModelConfig) -> int | None:
    """Returns the forced first token. Raises: ValueError where the library would force it after prompts of one token only."""
    if model.num_encoder_layers == 0 and options.has("forced_bos_token_id"):
        raise options.wrong(
            "forced_bos_token_id", "the library forces it after prompts of one token only; leave it out"
        )
    return one_id(options, "forced_bos_token_id", None)


def notes(config: Mapping[str, Any], generation: Mapping[str, Any], model: ModelConfig) -> list[str]:
    """Returns notes for the user: options of the folder that a DecodeConfig cannot express."""
    longest = (generation or config).get("max_length")
    if longest is None or model.num_encoder_layers or not model.num_decoder_layers:
        return []
    where = "generation_config.json" if generation else "config.json"
    return [
        f"{where}: max_length is {longest} and counts the prompt; it was skipped: decode.max_new_tokens limits the answer alone"
    ]


def read_lengths(options: Options, model: ModelConfig) -> tuple[int | None, int]:
    """Returns the largest and the smallest number of new tokens. Their lengths also count the token that an answer starts from.

    Raises: ValueError where a smallest length counts the prompt too.
    """
    longest, shortest = options.optional_integer("max_length"), options.integer("min_length", 0)
    most, least = options.optional_integer("max_new_tokens"), options.integer("min_new_tokens", 0)
    if model.num_encoder_layers == 0:
        if shortest > 0:
            raise options.wrong("min_length", "it counts the prompt, which is not implemented; min_new_tokens is")
        return most, least
    if longest is not None and most is None:
        most = max(1, longest - 1)
    return most, max(least, shortest - 1)


def read_sampling(options: Options, beam_size: int) -> Sampling | None:
    """Returns the settings of sampling; None where `do_sample` is not set."""
    sampled = options.flag("do_sample", False)
    options.ignore("temperature", "top_k", "top_p", "min_p")
    if not sampled:
        return None
    if beam_size > 1:
        raise options.wrong("do_sample", f"sampling with num_beams {beam_size} is not implemented")
    found: Sampling = read_table(SAMPLING_TABLE, options, Sampling(top_k=50)).build()
    return found


def suppress_ids(options: Options, ends: Collection[int]) -> tuple[int, ...]:
    """Returns the tokens that are never chosen. As in the library, end tokens stay allowed."""
    words = options.items("bad_words_ids")
    if any(not isinstance(word, list) or len(word) != 1 for word in words):
        raise options.wrong("bad_words_ids", "only words of one token are implemented")
    bad = {i for word in words for i in token_ids(options, "bad_words_ids", word)} - set(ends)
    suppressed = options.items("suppress_tokens")
    return tuple(sorted(bad.union(token_ids(options, "suppress_tokens", suppressed) if suppressed else ())))


# Back ------------------------------------------------------------------------------------------------------------------


def special_ids(decode: DecodeConfig, model: ModelConfig) -> dict[str, Any]:
    """Returns the special ids, as both files have them."""
    if model.num_decoder_layers == 0:
        return {"pad_token_id": decode.pad_id}
    ends: Any = list(decode.eos_ids) if len(decode.eos_ids) > 1 else decode.eos_id
    start = "decoder_start_token_id" if model.num_encoder_layers else "bos_token_id"
    return {"pad_token_id": decode.pad_id, "eos_token_id": ends, start: decode.bos_id}


def generation_config(decode: DecodeConfig, model: ModelConfig, longest_source: int) -> dict[str, Any]:
    """Returns `generation_config.json`: `decode_config` backwards.

    The file has no length that depends on the source, so the limit is that of the longest source.

    Raises: ValueError for a length penalty that the library does not have.
    """
    if decode.length_penalty == "gnmt":
        raise ValueError("decode.length_penalty is 'gnmt' (there: average, with any exponent)")
    sampling = decode.sampling if decode.sampling is not None and decode.sampling.temperature else None
    longest = decode.max_new_tokens
    if model.num_encoder_layers:
        longest = decode.max_length(longest_source)
        longest = min(longest, model.positions.max_positions or longest)
    found = special_ids(decode, model) | write_table(TABLE, decode)
    found |= {
        "length_penalty": decode.alpha if decode.length_penalty == "average" else 0.0,
        "do_sample": sampling is not None,
        "max_new_tokens": longest,
        "min_new_tokens": decode.min_new_tokens,
        "forced_bos_token_id": decode.forced_bos_id,
        "suppress_tokens": list(decode.suppress_ids) or None,
    }
    if sampling is not None:
        found |= write_table(SAMPLING_TABLE, sampling)
    return {name: value for name, value in found.items() if value is not None}


def export_notes(decode: DecodeConfig) -> list[str]:
    """Returns notes for the user: settings that the file cannot express."""
    if decode.at_limit == "end" or decode.beam_size == 1:
        return []
    return [
        f"decode.at_limit is {decode.at_limit!r}: in the library, beams at the limit of length count as ended ('end' here); the "
        "best answer may differ where beams reach the limit"
    ]
