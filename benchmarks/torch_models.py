"""A Transformer in PyTorch as one writes it for speed: query, key and value in one product, fused attention, no padding masks.

It has the shape that the `model` of a config.json describes, in the forms that are compared here: translation models, encoders
with a masked-language-model head, decoders of Llama's kind. Every row is taken for full.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Settings = dict[str, Any]
"""The `model` of a config.json."""


def rotate(x: torch.Tensor, base: float) -> torch.Tensor:
    """Rotates query or key heads `[B, N, T, H]` by their positions, in float32."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * rates
    a, b = x.float().chunk(2, -1)
    sin, cos = angles.sin(), angles.cos()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, model: Settings, *, causal: bool, crosses: bool) -> None:
        super().__init__()
        width, self.heads = model["d_model"], model["num_heads"]
        self.kv_heads = model["attention"]["num_kv_heads"] or self.heads
        self.head = width // self.heads
        self.causal, bias = causal, model["attention"]["bias"]
        self.base = model["positions"]["base"] if model["positions"]["kind"] == "rotary" else None
        kv_width = 2 * self.kv_heads * self.head
        self.queries = nn.Linear(width, width if crosses else width + kv_width, bias=bias)
        self.memory = nn.Linear(width, kv_width, bias=bias) if crosses else None
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        sizes = [n * self.head for n in (self.heads, self.kv_heads, self.kv_heads)]
        if self.memory is None:
            parts = self.queries(x).split(sizes, -1)
        else:
            parts = (self.queries(x), *self.memory(memory).split(sizes[1:], -1))
        query, key, value = (y.unflatten(-1, (-1, self.head)).transpose(1, 2) for y in parts)
        if self.base is not None:
            query, key = rotate(query, self.base), rotate(key, self.base)
        grouped = self.kv_heads != self.heads
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal, enable_gqa=grouped)
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, model: Settings) -> None:
        super().__init__()
        width, inner, bias = model["d_model"], model["d_ff"], model["feed_forward_bias"]
        self.gated = model["activation"] == "swiglu"
        self.function = {"swiglu": functional.silu, "relu": functional.relu, "gelu": functional.gelu}[
            model["activation"]
        ]
        self.up = nn.Linear(width, 2 * inner if self.gated else inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.gated:
            return self.down(self.function(self.up(x)))
        gate, up = self.up(x).chunk(2, -1)
        return self.down(self.function(gate) * up)


def norm_of(model: Settings) -> nn.Module:
    kind = {"rms_norm": nn.RMSNorm, "layer_norm": nn.LayerNorm}[model["norm"]["kind"]]
    return kind(model["d_model"], eps=model["norm"]["epsilon"])


class Block(nn.Module):
    def __init__(self, model: Settings, *, decodes: bool, crosses: bool) -> None:
        super().__init__()
        self.pre_norm, self.rate = "n" in model["residual"]["pre"], model["dropout"]["residual_rate"]
        self.attention = Attention(model, causal=decodes, crosses=False)
        self.cross = Attention(model, causal=False, crosses=True) if crosses else None
        self.feed_forward = FeedForward(model)
        self.norms = nn.ModuleList(norm_of(model) for _ in range(3 if crosses else 2))

    def add(self, x: torch.Tensor, norm: nn.Module, function: nn.Module, *memory: torch.Tensor) -> torch.Tensor:
        if self.pre_norm:
            return x + functional.dropout(function(norm(x), *memory), self.rate)
        return norm(x + functional.dropout(function(x, *memory), self.rate))

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        x = self.add(x, self.norms[0], self.attention)
        if self.cross is not None and memory is not None:
            x = self.add(x, self.norms[1], self.cross, memory)
        return self.add(x, self.norms[-1], self.feed_forward)


class Stack(nn.Module):
    def __init__(self, model: Settings, layers: int, *, decodes: bool, crosses: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(model, decodes=decodes, crosses=crosses) for _ in range(layers))
        self.end = norm_of(model) if "n" in model["residual"]["final"] else nn.Identity()

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, memory)
        return self.end(x)


class Transformer(nn.Module):
    """Returns the loss of a batch: the mean cross-entropy of the targets that are not negative."""

    def __init__(self, model: Settings, length: int, label_smoothing: float = 0.0) -> None:
        super().__init__()
        width, scheme = model["d_model"], model["positions"]["kind"]
        self.factor = width**0.5 if model["scale_embeddings"] else 1.0
        self.rate, self.smoothing = model["dropout"]["embedding_rate"], label_smoothing
        self.table = nn.Embedding(model["vocab_size"], width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        places: torch.Tensor | None = None
        if scheme == "learned":
            places = nn.Parameter(0.02 * torch.randn(model["positions"]["max_positions"], width))
        elif scheme == "sinusoidal":  # fixed; its values do not matter here
            places = nn.Buffer(torch.randn(length, width))
        self.places = places
        layers = model["num_encoder_layers"], model["num_decoder_layers"]
        self.encoder = Stack(model, layers[0], decodes=False, crosses=False) if layers[0] else None
        self.decoder = Stack(model, layers[1], decodes=True, crosses=layers[0] > 0) if layers[1] else None
        self.transform = None
        if model["head"]["transform"] is not None:
            self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), norm_of(model))
        self.output = nn.Linear(width, model["vocab_size"], bias=model["head"]["bias"])
        if model["share_target_output"]:
            self.output.weight = self.table.weight

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) * self.factor
        if self.places is not None:
            x = x + self.places[: tokens.shape[1]].to(x.dtype)
        return functional.dropout(x, self.rate)

    def forward(
        self,
        targets: torch.Tensor,
        source: torch.Tensor | None = None,
        shifted: torch.Tensor | None = None,
        predicted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Args: `source` is the encoder's tokens, `shifted` the decoder's; `predicted` are the positions `[B, P]` to be scored."""
        x = None
        if self.encoder is not None:
            x = self.encoder(self.embed(source))
        if self.decoder is not None:
            x = self.decoder(self.embed(shifted), x)
        if predicted is not None:
            x = x.gather(1, predicted[..., None].expand(-1, -1, x.shape[-1]))
        if self.transform is not None:
            x = self.transform(x)
        logits = self.output(x).flatten(0, 1)
        return functional.cross_entropy(
            logits.float(), targets.flatten(), ignore_index=-1, label_smoothing=self.smoothing
        )
