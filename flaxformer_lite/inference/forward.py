"""What a model says of some inputs, under the argument names that the ecosystem uses: NumPy in, NumPy out."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import Inputs, Outputs, shifted
from flaxformer_lite.model.transformer import Transformer


class ModelOutput(NamedTuple):
    """What comes out; None where the model has no such part."""

    logits: Float[np.ndarray, "B T V"] | Float[np.ndarray, "B C"] | None
    """Scores of the vocabulary; of the classes where the model scores nothing else."""
    last_hidden_state: Float[np.ndarray, "B T D"]
    """The last layer, after the last norm: the decoder's where there is one."""
    pooled: Float[np.ndarray, "B D"] | None
    """One vector for each text; of a sentence encoder, its embedding."""
    class_logits: Float[np.ndarray, "B C"] | None
    """Scores of the classes (BERT's second head: of the next sentence)."""
    encoder_last_hidden_state: Float[np.ndarray, "B S D"] | None
    """The encoder's last layer, where there is also a decoder."""


def forward(model: Transformer, variables: VariableDict, decode: DecodeConfig, **given: Any) -> ModelOutput:
    """The model's answer to `given`: arrays, or nested lists, by the names of `arguments`.

    The special ids of `decode` are for classifiers: whose decoder reads the source one place later, and what is not padding.

    Raises: ValueError where an argument is unknown to such a model, missing, or of another shape than it should be.
    """
    config = model.config
    arrays = {name: np.asarray(value) for name, value in given.items() if value is not None}
    check_arguments(config, arrays)
    outputs = _apply(model, variables, inputs_of(config, arrays, decode))
    found = jax.tree.map(np.asarray, outputs)
    both = config.num_encoder_layers > 0 and config.num_decoder_layers > 0
    return ModelOutput(
        logits=found.class_logits if config.head is None else found.logits,
        last_hidden_state=found.hidden if config.num_decoder_layers else found.memory,
        pooled=found.pooled if config.sentence_embedding is None else found.embedding,
        class_logits=found.class_logits,
        encoder_last_hidden_state=found.memory if both else None,
    )


@functools.partial(jax.jit, static_argnums=0)
def _apply(model: Transformer, variables: VariableDict, inputs: Inputs) -> Outputs:
    outputs: Outputs = model.apply(variables, inputs)  # type: ignore[assignment]
    return outputs


def arguments(config: ModelConfig) -> dict[str, bool]:
    """The names of what the model reads, and whether it has to be given."""
    tokens = "input_ids" if config.vocab_size else "inputs_embeds"
    if config.num_encoder_layers and config.num_decoder_layers:
        names = {tokens: True, "attention_mask": False, f"decoder_{tokens}": not shifts(config)}
        return names | {"decoder_attention_mask": False}
    names = {tokens: True, "attention_mask": False, "position_ids": False}
    return names | ({"token_type_ids": False} if config.num_token_types else {})


def shifts(config: ModelConfig) -> bool:
    """Whether the decoder can make do with the source: it is there for classes of the source."""
    return bool(config.head is None and config.pooler is not None and config.num_decoder_layers and config.vocab_size)


def check_arguments(config: ModelConfig, arrays: dict[str, np.ndarray]) -> None:
    """Raises: ValueError where what is given is not what the model reads."""
    names = arguments(config)
    if unknown := sorted(arrays.keys() - names):
        raise ValueError(f"{unknown[0]} is nothing that this model reads: give {', '.join(names)}")
    if missing := [name for name, needed in names.items() if needed and name not in arrays]:
        raise ValueError(f"{missing[0]} is missing: this model reads {', '.join(names)}")
    for name, array in arrays.items():
        vectors = name.endswith("inputs_embeds")
        shape = (*array.shape[:2], config.d_model)[: 2 + vectors]
        if array.ndim != 2 + vectors or array.shape != shape:
            wanted = f"vectors [batch, length, {config.d_model}]" if vectors else "numbers [batch, length]"
            raise ValueError(f"{name} has the shape {array.shape}: give {wanted}")
        side = "decoder_" if name.startswith("decoder_") else ""
        tokens = arrays.get(f"{side}input_ids", arrays.get(f"{side}inputs_embeds"))
        if tokens is not None and array.shape[:2] != tokens.shape[:2]:
            raise ValueError(
                f"{name} has the shape {array.shape}, and the tokens have {tokens.shape[:2]}: give one each"
            )
        size = config.vocab_sizes[1 if side and not config.one_table else 0]
        if name.endswith("input_ids") and (array.min(initial=0) < 0 or array.max(initial=0) >= size):
            wrong = int(array.max() if array.max() >= size else array.min())
            raise ValueError(f"{name} has {wrong}, which is no token id: they are 0 to {size - 1}")


def inputs_of(config: ModelConfig, arrays: dict[str, np.ndarray], decode: DecodeConfig) -> Inputs:
    """The model's own inputs. Positions that are not given are 0, 1, 2, … whatever the mask shows."""
    tokens = jnp.asarray(arrays["input_ids" if config.vocab_size else "inputs_embeds"])
    mask, last = boolean(arrays.get("attention_mask")), integers(last_positions(config, arrays, decode))
    positions = integers(positions_of(config, arrays))
    if config.num_encoder_layers == 0:
        return Inputs(target_tokens=tokens, target_mask=mask, target_positions=positions, last_positions=last)
    types = arrays.get("token_type_ids")
    if types is None and config.num_token_types:
        types = np.zeros(tokens.shape[:2], np.int32)
    inputs = Inputs(tokens, source_mask=mask, token_types=integers(types), source_positions=positions)
    if config.num_decoder_layers == 0:
        return inputs
    given = arrays.get("decoder_input_ids", arrays.get("decoder_inputs_embeds"))
    targets = shifted(tokens, decode.bos_id) if given is None else jnp.asarray(given)
    return inputs._replace(
        target_tokens=targets,
        target_mask=boolean(arrays.get("decoder_attention_mask")),
        last_positions=last if targets.shape[:2] == tokens.shape[:2] else None,
    )


def positions_of(config: ModelConfig, arrays: dict[str, np.ndarray]) -> Int[np.ndarray, "B T"] | None:
    """`position_ids` as the model counts: given are rows of its table where it has one, the first of which may be further ones.

    Raises: ValueError where the table has no such row.
    """
    given = arrays.get("position_ids")
    rows = config.positions.max_positions
    if given is None or rows is None:
        return given
    offset = config.positions.offset
    if given.min(initial=0) < 0 or given.max(initial=0) >= offset + rows:
        wrong = int(given.min() if given.min() < 0 else given.max())
        raise ValueError(f"position_ids has {wrong}, but the table of positions has the rows 0 to {offset + rows - 1}")
    return given - offset


def last_positions(
    config: ModelConfig, arrays: dict[str, np.ndarray], decode: DecodeConfig
) -> Int[np.ndarray, "B"] | None:
    """Where the last token of each text is, if that is where classes are read: the last that the mask shows. Without a mask it is
    found by the ids: the last that is no padding, or the last end where the decoder reads the source.

    Raises: ValueError where there is no end.
    """
    alone = config.num_encoder_layers == 0
    if config.pooler is None or config.pooler.token != "last" or not config.vocab_size or not (alone or shifts(config)):
        return None
    ids, shown = arrays["input_ids"], arrays.get("attention_mask")
    if shown is None:
        shown = ids != decode.pad_id if alone else ids == decode.eos_id
        if not alone and not shown.any(1).all():
            row = int(shown.any(1).argmin())
            raise ValueError(
                f"input_ids, row {row} has no end (decode.eos_id is {decode.eos_id}), where the classes are read: end it, or "
                "give attention_mask"
            )
    return np.where(shown, np.arange(ids.shape[1]), 0).max(1, initial=0)


def boolean(x: np.ndarray | None) -> Bool[Array, "B T"] | None:
    return None if x is None else jnp.asarray(x.astype(bool))


def integers(x: np.ndarray | None) -> Int[Array, "..."] | None:
    return None if x is None else jnp.asarray(x.astype(np.int32))
