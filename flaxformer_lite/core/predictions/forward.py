"""One forward pass under the argument names of Hugging Face's library: NumPy in, NumPy out."""

import functools
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from flaxformer_lite.core.model import Inputs, ModelConfig, Transformer
from flaxformer_lite.core.model.inputs import Outputs, shifted
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.special_ids import check_token_ids


class ForwardArguments(TypedDict, total=False):
    """Arrays or nested lists for a forward pass; `arguments` returns those that a model has."""

    input_ids: ArrayLike
    """Token ids [B, S]: the source, or the text of a decoder-only model [B, T]."""
    attention_mask: ArrayLike
    """1 at tokens, 0 at padding [B, S]; by default all 1."""
    token_type_ids: ArrayLike
    """The segment of each token [B, S]; by default 0."""
    position_ids: ArrayLike
    """The row of the position table for each token [B, S]; by default 0, 1, 2, …"""
    inputs_embeds: ArrayLike
    """Vectors [B, S, D] in place of `input_ids`, in a model without a vocabulary."""
    decoder_input_ids: ArrayLike
    """Token ids that the decoder of an encoder–decoder reads [B, T]."""
    decoder_attention_mask: ArrayLike
    """1 at tokens, 0 at padding [B, T]; by default all 1."""
    decoder_inputs_embeds: ArrayLike
    """Vectors [B, T, D] in place of `decoder_input_ids`."""


class ModelOutput(NamedTuple):
    """Outputs of a forward pass; None for parts that the model does not have."""

    logits: Float[np.ndarray, "B T V"] | Float[np.ndarray, "B C"] | None
    """Logits of the vocabulary; class logits if the model has no language-model head."""
    last_hidden_state: Float[np.ndarray, "B T D"]
    """The last layer after the final norm: the decoder's if there is one, else the encoder's."""
    pooled: Float[np.ndarray, "B D"] | None
    """One vector a text, by `model.pooler`; in a sentence encoder, its embedding."""
    class_logits: Float[np.ndarray, "B C"] | None
    """Logits of the classes (BERT's second head: of the next sentence)."""
    encoder_last_hidden_state: Float[np.ndarray, "B S D"] | None
    """The encoder's last layer in an encoder–decoder."""


def forward(
    model: Transformer, variables: VariableDict, decode: DecodeConfig, **given: Unpack[ForwardArguments]
) -> ModelOutput:
    """Returns the model's outputs for arrays or nested lists; None stands for an argument that is not given.

    `decode` has the special ids that classifiers need: the BOS before a shifted source, padding, and the end of a text.

    Raises: ValueError if an argument is unknown to this model, missing, or of the wrong shape or range.
    """
    config = model.config
    arrays = {name: np.asarray(value) for name, value in given.items() if value is not None}
    check_arguments(config, arrays)
    outputs = _apply(model, variables, model_inputs(config, arrays, decode))
    out = jax.tree.map(np.asarray, outputs)
    return ModelOutput(
        logits=out.class_logits if config.head is None else out.logits,
        last_hidden_state=out.hidden if config.num_decoder_layers else out.memory,
        pooled=out.pooled if config.sentence_embedding is None else out.embedding,
        class_logits=out.class_logits,
        encoder_last_hidden_state=out.memory if config.has_two_stacks else None,
    )


@functools.partial(jax.jit, static_argnums=0)
def _apply(model: Transformer, variables: VariableDict, inputs: Inputs) -> Outputs:
    outputs: Outputs = model.apply(variables, inputs)  # type: ignore[assignment]
    return outputs


def arguments(config: ModelConfig) -> dict[str, bool]:
    """Returns the names of the model's arguments, and whether each is required."""
    tokens = "input_ids" if config.vocab_size else "inputs_embeds"
    if config.has_two_stacks:
        names = {tokens: True, "attention_mask": False, f"decoder_{tokens}": not shifts_source(config)}
        return names | {"decoder_attention_mask": False}
    names = {tokens: True, "attention_mask": False, "position_ids": False}
    return names | ({"token_type_ids": False} if config.num_token_types else {})


def shifts_source(config: ModelConfig) -> bool:
    """Returns True if the decoder can read the shifted source: a classifier of the source without a language-model head."""
    return bool(config.head is None and config.pooler is not None and config.num_decoder_layers and config.vocab_size)


def check_arguments(config: ModelConfig, arrays: dict[str, np.ndarray]) -> None:
    """Raises: ValueError if an array is unknown to this model, missing, or of the wrong shape or range."""
    names = arguments(config)
    unknown = sorted(arrays.keys() - names)
    if unknown:
        raise ValueError(f"{unknown[0]} is no argument of this model: choose from {', '.join(names)}")
    missing = [name for name, required in names.items() if required and name not in arrays]
    if missing:
        raise ValueError(f"{missing[0]} is missing: the arguments of this model are {', '.join(names)}")
    first = next(iter(arrays))
    for name, array in arrays.items():
        vectors = name.endswith("inputs_embeds")
        wanted = f"vectors [batch, length, {config.embedding_width}]" if vectors else "numbers [batch, length]"
        if array.ndim != 2 + vectors or 0 in array.shape or (vectors and array.shape[2] != config.embedding_width):
            raise ValueError(
                f"{name} has the shape {array.shape}: it must be {wanted}, with a row and a token at least"
            )
        side = "decoder_" if name.startswith("decoder_") else ""
        tokens = arrays.get(f"{side}input_ids", arrays.get(f"{side}inputs_embeds", array))
        if array.shape[:2] != tokens.shape[:2] or len(array) != len(arrays[first]):
            raise ValueError(
                f"{name} has the shape {array.shape}: it must have the rows of {first}, and the length of the tokens it is for"
            )
        if name.endswith("input_ids"):
            size = config.vocab_sizes[1 if side and not config.one_table else 0]
            check_token_ids((int(array.max()), int(array.min())), size, f"{name} has")


def model_inputs(config: ModelConfig, arrays: dict[str, np.ndarray], decode: DecodeConfig) -> Inputs:
    """Returns the arrays as the model's inputs. Positions that are not given are 0, 1, 2, … whatever the mask is."""

    def array(name: str, dtype: type) -> Any:
        return None if arrays.get(name) is None else jnp.asarray(arrays[name].astype(dtype))

    tokens = jnp.asarray(arrays["input_ids" if config.vocab_size else "inputs_embeds"])
    mask = array("attention_mask", bool)
    last = last_positions(config, arrays, decode)
    positions = None
    if "position_ids" in arrays:
        positions = jnp.asarray(model_positions(config, arrays["position_ids"]).astype(np.int32))
    if config.num_encoder_layers == 0:
        return Inputs(target_tokens=tokens, target_mask=mask, target_positions=positions, last_positions=last)
    types = array("token_type_ids", np.int32)
    if types is None and config.num_token_types:
        types = jnp.zeros(tokens.shape[:2], jnp.int32)
    inputs = Inputs(tokens, source_mask=mask, token_types=types, source_positions=positions)
    if config.num_decoder_layers == 0:
        return inputs
    given = arrays.get("decoder_input_ids", arrays.get("decoder_inputs_embeds"))
    targets = shifted(tokens, decode.start_id) if given is None else jnp.asarray(given)
    return inputs._replace(
        target_tokens=targets,
        target_mask=array("decoder_attention_mask", bool),
        last_positions=last if targets.shape[:2] == tokens.shape[:2] else None,
    )


def model_positions(config: ModelConfig, given: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
    """Returns `position_ids` as the model counts them, from 0.

    A model whose positions skip padding, such as RoBERTa, gets rows of its position table: the rows before its offset count too.

    Raises: ValueError if the table has no such row.
    """
    if config.positions.max_positions is None:
        return given
    offset = 0 if config.position_padding_id is None else config.positions.offset
    most = offset + config.positions.max_positions - 1
    for row in (int(given.min()), int(given.max())):
        if not 0 <= row <= most:
            raise ValueError(
                f"position_ids has {row}, which is no row of the position table: rows must be between 0 and {most}"
            )
    return given - offset


def last_positions(config: ModelConfig, arrays: dict[str, np.ndarray], decode: DecodeConfig) -> Int[Array, "B"] | None:
    """Returns the position of each text's last token, if the pooler reads that one: the last that `attention_mask` shows.

    Without a mask it is the last token that is not padding; in an encoder–decoder the last end of a text.

    Raises: ValueError if a text of an encoder–decoder has no end.
    """
    alone = config.num_encoder_layers == 0
    if config.pooler is None or config.pooler.token != "last" or not config.vocab_size:
        return None
    if not alone and not shifts_source(config):
        return None
    ids = arrays["input_ids"]
    shown = arrays.get("attention_mask")
    if shown is None:
        shown = ids != decode.pad_id if alone else ids == decode.eos_id
        if not alone and not shown.any(1).all():
            row = int(shown.any(1).argmin())
            raise ValueError(
                f"input_ids, row {row} does not contain the first of decode.eos_ids {decode.eos_ids}, where the classes are "
                "read: append it, or pass attention_mask"
            )
    return jnp.asarray(np.where(shown, np.arange(ids.shape[1]), 0).max(1).astype(np.int32))
