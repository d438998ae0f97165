"""Settings of decoding in a Hugging Face folder, as a DecodeConfig and back.

They are in `generation_config.json`; an older folder without this file has them in `config.json`.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.search import DecodeConfig, Sampling
from flaxformer_lite.interop.hf.options import GENERATION, SPECIAL_IDS, UsualIds
from flaxformer_lite.interop.options import Kind, Options, option, read_table, write_table

NEUTRAL: dict[str, Any] = {
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
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

SKIPPED = "encoder_no_repeat_ngram_size"
"""An option of decoding that is left out with a note, and stays in an export."""
HARMLESS = (
    "transformers_version",
    "_from_model_config",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "max_time",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "return_dict_in_generate",
    "remove_invalid_values",
    "token_healing",
    "low_memory",
    "is_assistant",
    "disable_compile",
    "compile_config",
    "return_legacy_cache",
    "prefill_chunk_size",
    "trust_remote_code",
    "sep_token_id",
    "unk_token_id",
    "cls_token_id",
)
"""Options that change no token."""


TEMPLATE = DecodeConfig(early_stopping=False, finish_at_limit=True)
"""The library's defaults."""

STOPPING: tuple[bool | Literal["never"], ...] = (True, False, "never")
EARLY_STOPPING = Kind(lambda options, name, default: options.one_of(name, STOPPING, default))

TABLE = (
    option("num_beams", "beam_size"),
    option("length_penalty", "alpha"),
    option("early_stopping", "early_stopping", kind=EARLY_STOPPING),
    option("num_return_sequences", "num_hypotheses"),
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
    config: Mapping[str, object], generation: Mapping[str, object] | None, model: ModelConfig, special: UsualIds
) -> tuple[DecodeConfig, list[str]]:
    """Returns the settings of decoding, and notes for the user: what the folder has and the settings cannot express.

    The special ids of `config.json` count where `generation_config.json` lacks them, its other options only without that file
    (None); `special` has those that neither file has.

    Raises: ValueError that names an option that is not implemented.
    """
    inherited = {name: config[name] for name in SPECIAL_IDS if name in config}
    rules = {name: config[name] for name in GENERATION if name in config} if generation is None else generation
    present = {name: value for name, value in rules.items() if value is not None}
    options = Options(inherited | present, f"{'config' if generation is None else 'generation_config'}.json: ")
    notes: list[str] = []
    pad = one_id(options, "pad_token_id", min(model.vocab_sizes), notes, special.pad)
    if model.num_decoder_layers == 0:
        usual = special.pad if special.pad is not None and special.pad < model.vocab_size else 0
        return DecodeConfig(pad_id=usual if pad is None else pad), notes
    for name, value in NEUTRAL.items():
        options.only(name, value)
    options.ignore(*HARMLESS, *SPECIAL_IDS)
    length = options.integer(SKIPPED, 0)
    if length:
        notes.append(f"{SKIPPED} is {length}; it was skipped: answers may repeat {length} tokens of their source")
    end = options.raw("eos_token_id", special.eos)
    ends = known_ids(options, "eos_token_id", end, model.output_size, notes)
    draft = read_table(TABLE, options, TEMPLATE)
    draft["sampling"] = read_sampling(options, draft["beam_size"])
    draft["max_new_tokens"], draft["min_new_tokens"] = read_lengths(options, model, notes)
    draft["suppress_ids"] = suppress_ids(options, ends, model.output_size, notes)
    draft["forced_eos_id"] = one_id(options, "forced_eos_token_id", model.output_size, notes)
    draft["pad_id"] = pad if pad is not None else next(iter(ends), 0)
    draft["bos_id"] = start_id(options, model, special, ends, notes)
    draft["forced_bos_id"] = one_id(options, "forced_bos_token_id", model.output_size, notes)
    if model.num_encoder_layers == 0 and draft["forced_bos_id"] is not None:
        rule = "the library forces it after prompts of one token only; leave it out"
        raise options.wrong("forced_bos_token_id", rule)
    if generation is None and config.get("force_bos_token_to_be_generated") is True:  # BART's older option
        draft["forced_bos_id"] = one_id(options, "bos_token_id", model.output_size, [], special.bos)
    draft["eos_ids"] = ends
    options.finish()
    decode: DecodeConfig = draft.build()
    return decode, notes


def known_ids(options: Options, name: str, value: object, size: int, notes: list[str]) -> tuple[int, ...]:
    """Returns one id, or a list of ids, as far as the model has them. Others are left out with a note, since no text has them.

    -1 stands for none in the first Llama folders.

    Raises: ValueError for another value of the option.
    """
    ids: tuple[Any, ...] = ()
    if value is not None:
        ids = tuple(value) if isinstance(value, list | tuple) else (value,)
    if value == [] or any(type(i) is not int for i in ids):
        raise options.wrong(name, "it should be a token id, or a list of such, or null for none")
    outside = [str(i) for i in ids if not -1 <= i < size]
    if outside:
        notes.append(f"{name} has {cut(', '.join(outside))}, and the model's ids are 0 to {size - 1}: it was left out")
    return tuple(i for i in ids if 0 <= i < size)


def one_id(options: Options, name: str, size: int, notes: list[str], absent: int | None = None) -> int | None:
    """Returns a token id of the model, or None. `absent` is the value of a missing option."""
    value = options.raw(name, absent)
    if isinstance(value, list):
        raise options.wrong(name, "it should be one token id, or null for none")
    return next(iter(known_ids(options, name, value, size, notes)), None)


def start_id(
    options: Options, model: ModelConfig, special: UsualIds, ends: tuple[int, ...], notes: list[str]
) -> int | None:
    """Returns the first token of answers. A prompt without tokens starts from an end token if there is no other id.

    A decoder without an encoder may lack it: only a prompt without tokens needs it.

    Raises: ValueError where an encoder–decoder has none, or one that is not in its table.
    """
    size, name = model.output_size, "decoder_start_token_id"
    bos = one_id(options, "bos_token_id", size, notes, special.bos)
    if model.num_encoder_layers == 0:
        return next(iter(ends), None) if bos is None else bos
    outside: list[str] = []
    start = one_id(options, name, size, outside, special.start)
    if outside:
        raise options.wrong(name, f"an answer starts from it, and the model's ids are 0 to {size - 1}: set it to one")
    if start is None and bos is None:
        raise options.wrong(name, f"an answer starts from it, or from bos_token_id: set one to a token id below {size}")
    return bos if start is None else start


def read_lengths(options: Options, model: ModelConfig, notes: list[str]) -> tuple[int | None, int]:
    """Returns the largest and the smallest number of new tokens. Their lengths also count the token that an answer starts from.

    If a folder has both kinds, `max_new_tokens` and `min_new_tokens` count.

    Raises: ValueError where a smallest length counts the prompt too.
    """
    longest = options.optional_integer("max_length")
    shortest = options.integer("min_length", 0)
    most, least = options.optional_integer("max_new_tokens"), options.optional_integer("min_new_tokens")
    if model.num_encoder_layers == 0:
        if longest is not None:
            notes.append(
                f"max_length is {longest} and counts the prompt; it was skipped: decode.max_new_tokens limits the answer"
            )
        if shortest > 0 and least is None:
            raise options.wrong("min_length", "it counts the prompt, which is not implemented; min_new_tokens is")
        return most, least or 0
    if longest is not None and most is None:
        most = max(1, longest - 1)
    return most, max(shortest - 1, 0) if least is None else least


def read_sampling(options: Options, beam_size: int) -> Sampling | None:
    """Returns the settings of sampling; None where `do_sample` is not set."""
    sampled = options.flag("do_sample", False)
    options.ignore("temperature", "top_k", "top_p", "min_p")
    if not sampled:
        return None
    if beam_size > 1:
        raise options.wrong("do_sample", f"sampling with num_beams {beam_size} is not implemented")
    sampling: Sampling = read_table(SAMPLING_TABLE, options, Sampling(top_k=50)).build()
    return sampling


def suppress_ids(options: Options, ends: Collection[int], size: int, notes: list[str]) -> tuple[int, ...]:
    """Returns the tokens that are never chosen. As in the library, end tokens stay allowed."""
    words = options.items("bad_words_ids")
    if any(not isinstance(word, list) or len(word) != 1 for word in words):
        raise options.wrong("bad_words_ids", "only words of one token are implemented")
    bad = [word[0] for word in words] or None
    kept = known_ids(options, "suppress_tokens", options.items("suppress_tokens") or None, size, notes)
    banned = known_ids(options, "bad_words_ids", bad, size, notes)
    return tuple(sorted(set(banned) - set(ends) | set(kept)))


# Back ------------------------------------------------------------------------------------------------------------------


def written_special_ids(decode: DecodeConfig, model: ModelConfig) -> dict[str, Any]:
    """Returns the special ids, as both files have them."""
    if model.num_decoder_layers == 0:
        return {"pad_token_id": decode.pad_id}
    ends: Any = list(decode.eos_ids) if len(decode.eos_ids) > 1 else decode.eos_id
    start = "decoder_start_token_id" if model.num_encoder_layers else "bos_token_id"
    return {"pad_token_id": decode.pad_id, "eos_token_id": ends, start: decode.bos_id}


def generation_config(
    decode: DecodeConfig, model: ModelConfig, longest_source: int, positions: int | None = None
) -> dict[str, Any]:
    """Returns `generation_config.json`: `decode_config` backwards.

    The file has no length that depends on the source, so the limit is that of the longest source.

    positions: those that config.json states. The library makes a table with a row for each, also where positions are computed here.

    Raises: ValueError for a length penalty that the library does not have.
    """
    if decode.length_penalty == "gnmt":
        raise ValueError("decode.length_penalty is 'gnmt', which Hugging Face's library lacks: choose average or none")
    sampling = decode.sampling if decode.sampling is not None and decode.sampling.temperature else None
    longest = decode.max_new_tokens
    if model.num_encoder_layers:
        longest = decode.max_length(longest_source)
        longest = min(longest, model.positions.max_positions or positions or longest)
    settings = written_special_ids(decode, model) | write_table(TABLE, decode)
    settings |= {
        "length_penalty": decode.alpha if decode.length_penalty == "average" else 0.0,
        "do_sample": sampling is not None,
        "max_new_tokens": longest,
        "min_new_tokens": decode.min_new_tokens,
        "forced_bos_token_id": decode.forced_bos_id,
        "forced_eos_token_id": decode.forced_eos_id,
        "suppress_tokens": list(decode.suppress_ids) or None,
    }
    if sampling is not None:
        settings |= write_table(SAMPLING_TABLE, sampling)
    return {name: value for name, value in settings.items() if value is not None}


def export_notes(decode: DecodeConfig) -> list[str]:
    """Returns notes for the user: settings that the file cannot express."""
    if decode.finish_at_limit or decode.beam_size == 1:
        return []
    return [
        "decode.finish_at_limit is False: in the library, beams at the limit of length count as finished; the best answer may "
        "differ where beams reach the limit"
    ]
