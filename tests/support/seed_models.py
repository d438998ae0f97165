"""The cases of the four systems that are whole models: the companions of `seed_cases.py`."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from flaxformer_lite.core.model import ModelConfig, PositionEmbedding, Transformer
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.model.masks import causal_mask, combine_masks, padding_mask
from flaxformer_lite.core.model.norms import Normalize
from flaxformer_lite.core.objectives.losses import LossTerm, cross_entropy
from flaxformer_lite.interop import SYSTEMS, WeightName, to_params
from tests.support.seed_cases import Arrays, Case, as_mask, differentiated, dot_loss, floats_of, smoothed_loss, sown

SYSTEM_OF = {"000": "paddle", "001": "nlp-in-action", "002": "bert-tf", "003": "matrix-view"}


class Whole(NamedTuple):
    """A model of another system in our terms, with its parameters."""

    settings: Mapping[str, Any]
    config: ModelConfig
    names: list[WeightName]
    params: Any

    @classmethod
    def of(cls, case: Case) -> "Whole":
        system = SYSTEMS[SYSTEM_OF[case.config["system"]]]
        config, names = system.model_config(case.config), system.name_map(case.config)
        params = jax.tree.map(lambda x: jnp.asarray(x, case.dtype), to_params(case.params, names, config))
        return cls(case.config, dataclasses.replace(config, dtype=np.dtype(case.dtype).name), names, params)

    def apply(self, params: Any, inputs: Inputs, embedded: Arrays) -> tuple[Outputs, Any]:
        """Outputs and intermediates; `embedded` are zeros added to what enters a stack, to take gradients there."""
        with add_to_embeddings(embedded, self.config.embedding_norm):
            outputs, state = Transformer(self.config).apply({"params": params}, inputs, mutable=["intermediates"])
        return outputs, state["intermediates"]


def add_to_embeddings(embedded: Arrays, normed: bool) -> AbstractContextManager:
    """Whatever leaves the embeddings of a stack has `embedded[stack]` added to it."""
    last = (Normalize, "embedding_norm") if normed else (PositionEmbedding, "positions")

    def interceptor(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        y = call(*args, **kwargs)
        here = isinstance(context.module, last[0]) and context.module.path[1:] == (last[1],)
        delta = embedded.get(context.module.path[0]) if here and context.method_name == "__call__" else None
        return y if delta is None else y + delta

    return nn.intercept_methods(interceptor)


def per_layer(x: Any, name: str) -> Arrays:
    return {f"{name}_{i}": layer for i, layer in enumerate(x)}


def stack_outputs(found: Any, stack: str, **names: str) -> Arrays:
    """Layer by layer what a stack sowed, under the fixtures' names: output, attention, cross_attention."""
    layers = found[stack]["layers"]
    paths = {"output": ("output",), "attention": ("attention", "weights"), "cross": ("cross_attention", "weights")}
    return {k: v for ours, theirs in names.items() for k, v in per_layer(sown(layers, *paths[ours]), theirs).items()}


def paddle_encoder(case: Case) -> Arrays:
    whole = Whole.of(case)

    def forward(params: Any, floats: Arrays) -> Arrays:
        inputs = Inputs(source_tokens=floats["enc_input"], source_bias=case.inputs.get("attn_bias"))
        outputs, found = whole.apply(params, inputs, {})
        return dot_loss(
            case, {"output": outputs.memory} | stack_outputs(found, "encoder", output="layer", attention="weights")
        )

    return differentiated(forward, whole.params, floats_of(case, "enc_input"), whole.names)


def translation_inputs(case: Case) -> Inputs:
    """Tokens with the masks that were given; only where none was, the system makes its own, padding and causal."""
    given, pad = case.inputs, case.config["pad_idx"]
    source, target = jnp.asarray(given["src"]), jnp.asarray(given["tgt"])
    if "src_mask" not in given and "tgt_mask" not in given:
        return Inputs(source, target, source != pad, target != pad)
    length = target.shape[1]
    source_mask = None if "src_mask" not in given else as_mask(given["src_mask"])[:, 0, 0]
    everything = jnp.ones((1, 1, length, length), bool)
    return Inputs(source, target, source_mask, target_attention=as_mask(given.get("tgt_mask", everything)))


def translation_model(case: Case) -> Arrays:
    whole, inputs, c = Whole.of(case), translation_inputs(case), case.config
    sizes = {"enc_embed": (inputs.source_tokens, "encoder"), "dec_embed": (inputs.target_tokens, "decoder")}
    deltas = {name: jnp.zeros((*tokens.shape, c["d_model"]), case.dtype) for name, (tokens, _) in sizes.items()}

    def forward(params: Any, floats: Arrays) -> Arrays:
        outputs, found = whole.apply(params, inputs, {sizes[name][1]: x for name, x in floats.items()})
        answer = {
            "enc_embed": sown(found, "encoder", "embedded"),
            "dec_embed": sown(found, "decoder", "embedded"),
            "memory": outputs.memory,
            "decoder_output": outputs.hidden,
            "logits": outputs.logits,
            **stack_outputs(found, "encoder", output="encoder_layer", attention="enc_weights"),
            **stack_outputs(
                found, "decoder", output="decoder_layer", attention="dec_self_weights", cross="dec_cross_weights"
            ),
        }
        if c["loss"] == "ce":
            labels = jnp.asarray(case.inputs["labels"])
            return answer | {"loss": smoothed_loss(outputs.logits, labels, c["label_smoothing"], c["pad_idx"])}
        return dot_loss(case, answer, "logits")

    return differentiated(forward, whole.params, deltas, whole.names) | translation_masks(inputs)


def translation_masks(inputs: Inputs) -> Arrays:
    found = {}
    if inputs.source_mask is not None:
        found["out/src_mask"] = padding_mask(inputs.source_mask)
    if inputs.target_mask is not None:
        found["out/tgt_mask"] = combine_masks(
            causal_mask(inputs.target_mask.shape[1]), padding_mask(inputs.target_mask)
        )
    elif inputs.target_attention is not None:
        found["out/tgt_mask"] = inputs.target_attention
    return found


def recipe_params(config: Mapping[str, Any]) -> Arrays:
    """The weights of a case too large to store, as the fixtures' README draws them."""
    random = np.random.RandomState(config["seed"])
    params = {}
    for name, shape in sorted(config["shapes"].items()):
        z = random.standard_normal(shape)
        small = 0.1 * z if name.endswith("bias") else z / np.sqrt(shape[1]) if len(shape) == 2 else 1 + 0.1 * z
        params[name] = np.float32(0.5 * z if "embedding" in name else small)
        np.testing.assert_allclose(params[name].sum(dtype=np.float64), config["sums"][name], rtol=1e-6, atol=1e-6)
    return params


def matrix_view_model(case: Case) -> Arrays:
    c, given = case.config, case.inputs
    by_recipe = "shapes" in c
    whole = Whole.of(case._replace(params=recipe_params(c)) if by_recipe else case)
    source, target = jnp.asarray(given["src"]), jnp.asarray(given["trg"])
    inputs = Inputs(source, target, source_mask=source != c["src_pad_idx"])
    sizes = {"enc_embed": (source, "encoder"), "dec_embed": (target, "decoder")}
    deltas = {name: jnp.zeros((*tokens.shape, c["embed_size"]), case.dtype) for name, (tokens, _) in sizes.items()}

    def forward(params: Any, floats: Arrays) -> Arrays:
        outputs, found = whole.apply(params, inputs, {sizes[name][1]: x for name, x in floats.items()})
        answer = {
            "logits": outputs.logits,
            "enc_embed": sown(found, "encoder", "embedded"),
            "dec_embed": sown(found, "decoder", "embedded"),
            **stack_outputs(found, "encoder", output="encoder_layer", attention="enc_attention"),
            **stack_outputs(
                found, "decoder", output="decoder_layer", attention="dec_self_attention", cross="dec_cross_attention"
            ),
        }
        return dot_loss(case, answer, "logits")

    found = differentiated(forward, whole.params, deltas, whole.names)
    if by_recipe:
        gradients = {name.removeprefix("grad/"): x for name, x in found.items() if name.startswith("grad/")}
        found |= {f"out/grad_l2/{name}": np.linalg.norm(x) for name, x in gradients.items()}
        found |= {f"out/grad_first16/{name}": np.asarray(x).reshape(-1)[:16] for name, x in gradients.items()}
    causal = causal_mask(target.shape[1])
    trg_mask = jnp.broadcast_to(causal, (len(target), *causal.shape[1:]))
    return found | {"out/src_mask": padding_mask(source != c["src_pad_idx"]), "out/trg_mask": trg_mask}


def bert_model(case: Case) -> Arrays:
    whole, given = Whole.of(case), case.inputs
    tokens, picked = jnp.asarray(given["input_ids"]), jnp.asarray(given["masked_lm_positions"])
    inputs = Inputs(
        source_tokens=tokens,
        source_mask=as_mask(given.get("input_mask")),
        token_types=jnp.asarray(given.get("segment_ids", np.zeros_like(tokens))),
        predict_positions=picked,
    )
    labels, weights = jnp.asarray(given["masked_lm_ids"]), given["masked_lm_weights"]
    next_labels = jnp.asarray(given["next_sentence_labels"])[:, 0]
    zeros = jnp.zeros((*tokens.shape, whole.config.d_model), case.dtype)

    def forward(params: Any, floats: Arrays) -> Arrays:
        outputs, found = whole.apply(params, inputs, {"encoder": floats["embedding_output"]})
        logits, classes = outputs.logits.reshape(-1, outputs.logits.shape[-1]), outputs.class_logits
        masked = cross_entropy(logits, labels.reshape(-1), weights.reshape(-1))
        following = cross_entropy(classes, next_labels, jnp.ones_like(classes[:, 0]))
        masked_loss = masked.sum / (masked.count + 1e-5)
        return {
            "embedding_output": sown(found, "encoder", "embedded"),
            "sequence_output": outputs.memory,
            "pooled_output": outputs.pooled,
            "masked_lm_logits": logits,
            "masked_lm_log_probs": jax.nn.log_softmax(logits),
            "masked_lm_example_loss": each(logits, labels.reshape(-1)),
            "masked_lm_loss": masked_loss,
            "next_sentence_logits": classes,
            "next_sentence_log_probs": jax.nn.log_softmax(classes),
            "next_sentence_example_loss": each(classes, next_labels),
            "next_sentence_loss": following.sum / following.count,
            "loss": masked_loss + following.sum / following.count,
            **stack_outputs(found, "encoder", output="encoder_layer", attention="attention_probs"),
        }

    found = differentiated(forward, whole.params, {"embedding_output": zeros}, whole.names)
    return found | {"out/total_loss": found["out/loss"]}


def each(logits: Any, labels: Any) -> Any:
    """The cross-entropy of every example on its own."""
    one = jax.vmap(lambda x, y: LossTerm(*cross_entropy(x[None], y[None], jnp.ones(1, x.dtype))).sum)
    return one(logits, labels)


MODELS: dict[tuple[str, str], Callable[[Case], Arrays]] = {
    ("000", "EncoderLayer"): paddle_encoder,
    ("001", "TranslationHead.forward"): translation_model,
    ("002", "BertModel and pretraining heads"): bert_model,
    ("003", "Transformer.forward"): matrix_view_model,
    ("003", "Transformer.forward, weights by recipe"): matrix_view_model,
}
