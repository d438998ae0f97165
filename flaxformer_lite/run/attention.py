"""Attention weights of a model for a text, or a pair of texts, for pictures."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from flaxformer_lite.core.base.bounds import LARGEST
from flaxformer_lite.core.model import Inputs, Transformer
from flaxformer_lite.core.placement.batches import pad_rows, padded_length
from flaxformer_lite.core.search.generation import encode_prompt
from flaxformer_lite.core.text import LanguageTokenizers, Tokenizer
from flaxformer_lite.core.text.special_ids import ReportCut, truncated
from flaxformer_lite.tasks.fill_mask.answers import MASK, text_ids

CONTINUATION_TOKENS = 20
"""The maximum length of a continuation whose attention is shown by default."""
AttentionKind = Literal["cross", "encoder", "decoder"]
"""An attention: of the decoder to the source, of the encoder to itself, of the decoder to itself."""


class AttentionIds(NamedTuple):
    """The token ids that a model reads to show its attention, special ones included; none for a stack that it lacks."""

    sources: list[int]
    targets: list[int]
    prompt_length: int
    """The number of the first targets that also attend to each other."""


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of every layer and head, and the pieces along their axes.

    Row i of `decoder` and `cross` predicts piece i + 1 of the target, which an encoder–decoder reads after `decode.bos_id`. An
    attention that the model lacks has 0 layers; a stack that it lacks has no pieces.
    """

    source_pieces: list[str]
    target_pieces: list[str]
    encoder: Float[np.ndarray, "_ _ S S"]
    decoder: Float[np.ndarray, "_ _ T T"]
    cross: Float[np.ndarray, "_ _ T S"]
    end_piece: str = "(end)"
    """The piece that the last position of a target predicts, as the tokenizer writes it."""

    @property
    def kinds(self) -> list[AttentionKind]:
        return [kind for kind in get_args(AttentionKind) if len(getattr(self, kind))]


def attention_axes(weights: AttentionWeights, kind: AttentionKind) -> tuple[list[str], list[str]]:
    """Returns the labels of the rows and of the columns of a map; rows of `cross` are the tokens that are predicted there."""
    if kind == "encoder":
        return weights.source_pieces, weights.source_pieces
    if kind == "decoder":
        return weights.target_pieces, weights.target_pieces
    return [*weights.target_pieces[1:], weights.end_piece], weights.source_pieces


def common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Returns the number of ids that both begin with: a token across the end of a prompt does not belong to the prompt."""
    for i, (one, other) in enumerate(zip(ids, others, strict=False)):
        if one != other:
            return i
    return min(len(ids), len(others))


def own_targets(run: Any, sources: Sequence[str]) -> Sequence[str | None]:
    """Returns the model's own translation or continuation of each source; None for each by a model without decoder."""
    if run.config.model.num_decoder_layers == 0:
        return [None for _ in sources]
    if run.config.model.num_encoder_layers:
        return run.translate(sources)
    return run.generate(sources, max_new_tokens=CONTINUATION_TOKENS)


def attention_ids(run: Any, source: str, target: str | None, too_long: ReportCut) -> AttentionIds:
    """Returns the token ids that the model reads, cut to what the config allows.

    `target` is None for a model without decoder. `too_long` is called for each text that is cut.
    """
    config, tokenizers = run.config, run.required_tokenizers
    if target is None:
        text = text_ids(run.text_model, source)
        most = config.data.max_source_length
        truncated(tokenizers.source.with_special_tokens(text).tokens, most, "text", "max_source_length", too_long)
        return AttentionIds(tokenizers.source.truncated([text], most).tokens, [], 0)
    if config.model.num_encoder_layers == 0:
        prompt, whole = (
            encode_prompt(tokenizers.target, text, config.decode.bos_id) for text in (source, source + target)
        )
        ids = truncated(whole, config.data.longest.target, "text", "max_target_length", too_long)
        full = config.objective.prompt_attention == "full"
        return AttentionIds([], ids, common_length(ids, prompt) if full else 0)
    form = run.translator.form
    form.check_languages()
    start = [config.decode.start_id]
    if isinstance(tokenizers, LanguageTokenizers) and tokenizers.languages.direction:
        start += tokenizers.ids_of(()).first
    most = form.room
    most_of_target = config.data.longest.target - len(start)
    sources = truncated(tokenizers.source.encode(source), most, "source", "max_source_length", too_long)
    targets = truncated(tokenizers.target.encode(target), most_of_target, "target", "max_target_length", too_long)
    return AttentionIds(tokenizers.source.as_source(sources), [*start, *targets], 0)


def layer_weights(run: Any, ids: AttentionIds) -> AttentionWeights:
    """Returns every layer's weights for what `attention_ids` returned.

    The model is compiled once for each pair of padded lengths.
    """
    model, tokenizers, (sources, targets, prompt_length) = run.model, run.required_tokenizers, ids
    source, source_mask = padded_ids(model, sources, tokenizers.source.pad_id)
    target, target_mask = padded_ids(model, targets, tokenizers.target.pad_id)
    inputs = Inputs(source, target, source_mask, target_mask)  # type: ignore[arg-type]  # NumPy's, on the host
    if source is not None and model.config.num_token_types:
        inputs = inputs._replace(token_types=jnp.zeros_like(source))
    if target is not None and prompt_length:
        length = target.shape[1]
        attends = jnp.tri(length, dtype=bool) | (jnp.arange(length) < prompt_length)
        inputs = inputs._replace(target_attention=attends[None, None])
    stacks = apply_with_intermediates(model, run.params, inputs)

    def weights(stack: str, attention: str) -> Float[np.ndarray, "L N T S"]:
        queries = targets if stack == "decoder" else sources
        keys = queries if attention == "attention" else sources
        if not (queries and keys):
            return np.zeros((0, model.config.num_heads, len(queries), len(keys)), np.float32)
        attended = stacks[stack]["layers"][attention]["weights"][0]
        return np.asarray(attended[:, 0])[..., : len(queries), : len(keys)]

    end = tokenizers.target.eos_id
    return AttentionWeights(
        source_pieces=labels(tokenizers.source, sources, "" if targets else MASK),
        target_pieces=labels(tokenizers.target, targets),
        encoder=weights("encoder", "attention"),
        decoder=weights("decoder", "attention"),
        cross=weights("decoder", "cross_attention"),
        end_piece="(end)" if end is None else labels(tokenizers.target, [end])[0],
    )


@functools.partial(jax.jit, static_argnames="model")
def apply_with_intermediates(model: Transformer, params: PyTree, inputs: Inputs) -> PyTree:
    """Returns what the parts of the model noted while it read the inputs."""
    _, variables = model.apply({"params": params}, inputs, mutable=["intermediates"])
    return variables["intermediates"]


def padded_ids(
    model: Transformer, ids: list[int], pad_id: int
) -> tuple[Int[np.ndarray, "1 S"], Bool[np.ndarray, "1 S"]] | tuple[None, None]:
    """Returns a row of padded token ids and the mask of those that are no padding; None for no ids."""
    if not ids:
        return None, None
    length = min(padded_length(len(ids)), model.config.positions.max_positions or LARGEST)
    return pad_rows([ids], (1, length), pad_id), pad_rows([[1] * len(ids)], (1, length)).astype(bool)


def labels(tokenizer: Tokenizer, ids: list[int], other: str = "") -> list[str]:
    """Returns a label for each id: its piece; of an id that the tokenizer does not have, `other` or the number."""
    return [tokenizer.piece(i, other or str(i)) for i in ids]
