"""A slow Transformer in float64 numpy: the oracle of the model's tests.

It follows the papers with plain loops, one sentence, one position and one head at a time, and shares no code with the
library. Parameters are nested dictionaries of arrays under the library's names. No function here pads or masks a
sentence: what may not be seen is left out of the loop.
"""

import cmath
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


def erf_gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def tanh_gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def relu(x: float) -> float:
    return max(x, 0.0)


PLAIN = {"relu": relu, "gelu": erf_gelu, "gelu_tanh": tanh_gelu, "silu": silu, "tanh": math.tanh, "linear": float}
GATED = {"reglu": relu, "geglu": erf_gelu, "geglu_tanh": tanh_gelu, "swiglu": silu}


def layer_norm(x, scale, bias, epsilon: float = 1e-6) -> np.ndarray:
    mean = sum(x) / len(x)
    variance = sum((v - mean) ** 2 for v in x) / len(x)
    return np.array(
        [s * (v - mean) / math.sqrt(variance + epsilon) + b for v, s, b in zip(x, scale, bias, strict=True)]
    )


def rms_norm(x, scale, epsilon: float = 1e-6) -> np.ndarray:
    mean_square = sum(v * v for v in x) / len(x)
    return np.array([s * v / math.sqrt(mean_square + epsilon) for v, s in zip(x, scale, strict=True)])


def deviation_norm(x, scale, bias, epsilon: float = 1e-6) -> np.ndarray:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))
    return np.array([s * (v - mean) / (deviation + epsilon) + b for v, s, b in zip(x, scale, bias, strict=True)])


def linear(x, params: dict) -> np.ndarray:
    rows, columns = params["kernel"].shape
    bias = params.get("bias", np.zeros(columns))
    return np.array([bias[j] + sum(x[i] * params["kernel"][i, j] for i in range(rows)) for j in range(columns)])


def feed_forward(x, params: dict, activation: str) -> np.ndarray:
    up = linear(x, params["up"])
    if activation in GATED:
        gate = linear(x, params["gate"])
        return linear([GATED[activation](g) * u for g, u in zip(gate, up, strict=True)], params["down"])
    return linear([PLAIN[activation](u) for u in up], params["down"])


def sinusoid(position: int, width: int, layout: str, max_wavelength: float = 10_000.0) -> np.ndarray:
    """Vaswani et al. 2017, section 3.5; `half_split` puts all the sines before the cosines. Odd widths end one cosine early."""
    sines = [math.sin(position / max_wavelength ** (2 * j / width)) for j in range(math.ceil(width / 2))]
    cosines = [math.cos(position / max_wavelength ** (2 * j / width)) for j in range(width // 2)]
    if layout == "half_split":
        return np.array(sines + cosines)
    return np.array([cosines[i // 2] if i % 2 else sines[i // 2] for i in range(width)])


def rotary(head, position: int, rates: list[float], layout: str, amplitude: float = 1.0) -> np.ndarray:
    """Su et al. 2021, equation 13: a pair of elements is a complex number, turned by `position * rate`; the rest stay."""
    turned = np.array(head)
    for j, rate in enumerate(rates):
        first, second = (j, j + len(rates)) if layout == "half_split" else (2 * j, 2 * j + 1)
        number = complex(head[first], head[second]) * cmath.rect(amplitude, position * rate)
        turned[first], turned[second] = number.real, number.imag
    return turned


def rotary_rates(pairs: int, base: float) -> list[float]:
    return [base ** (-j / pairs) for j in range(pairs)]


def llama3_rate(rate: float, factor: float, low: float, high: float, original_length: int) -> float:
    """By wavelength: longer than `original_length / low` is slowed down, shorter than `original_length / high` is not."""
    wavelength = 2 * math.pi / rate
    if wavelength > original_length / low:
        return rate / factor
    if wavelength < original_length / high:
        return rate
    smooth = (original_length / wavelength - low) / (high - low)
    return (1 - smooth) * rate / factor + smooth * rate


def yarn_rates(
    rates: list[float], factor: float, fast: float, slow: float, original_length: int, whole: bool
) -> list[float]:
    """Peng et al. 2023: pairs up to the one of `fast` turns keep their rate, from the one of `slow` turns on it is divided."""
    growth = math.log(rates[0] / rates[1])  # from one pair to the next
    ends = [math.log(original_length * rates[0] / (2 * math.pi * turns)) / growth for turns in (fast, slow)]
    begin, end = (math.floor(ends[0]), math.ceil(ends[1])) if whole else ends
    begin, end = max(begin, 0), min(end, 2 * len(rates) - 1)
    shares = [0 if j <= begin else 1 if j >= end else (j - begin) / (end - begin) for j in range(len(rates))]
    return [
        rate if share == 0 else share * rate / factor + (1 - share) * rate
        for rate, share in zip(rates, shares, strict=True)
    ]


def alibi_slopes(num_heads: int) -> list[float]:
    """Press et al. 2021, section 3: a geometric sequence that begins with its own ratio."""
    power = 2 ** int(math.log2(num_heads))
    ratio = 2 ** (-8 / power)
    slopes = [ratio * ratio**n for n in range(power)]
    return slopes if power == num_heads else slopes + alibi_slopes(2 * power)[::2][: num_heads - power]


def relative_bucket(offset: int, num_buckets: int, max_distance: int, causal: bool) -> int:
    """Raffel et al. 2019, section 2.1, in whole numbers: step k of n begins at distance d where (d / e)^n = (max / e)^k."""
    count = num_buckets if causal else num_buckets // 2
    first = 0 if causal or offset <= 0 else count
    distance = max(-offset, 0) if causal else abs(offset)
    e, n = count // 2, count - count // 2
    if distance < e:
        return first + distance
    return first + e + max(k for k in range(n) if distance**n * e**k >= max_distance**k * e**n)


def soft_capped(x: float, cap: float | None) -> float:
    return x if cap is None else cap * math.tanh(x / cap)


def as_it_is(head: np.ndarray, *_) -> np.ndarray:
    return head


def attention(
    params: dict,
    query,
    key,
    value,
    num_heads: int,
    num_kv_heads: int,
    allowed,
    bias,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    row_norm: Callable = as_it_is,
    qk_norm: Callable = as_it_is,
    turn: Callable = as_it_is,
) -> tuple:
    """Output `[T, D]` and weights `[N, T, S]`; `allowed` and `bias` are `[N, T, S]`.

    `row_norm(row, params)` normalises all heads of a query or key together, `qk_norm(head, params, n)` head n, and
    `turn(head, position)` then turns it.
    """
    queries, keys, values = (
        np.array([linear(x, params[name]) for x in inputs])
        for name, inputs in (("query", query), ("key", key), ("value", value))
    )
    queries, keys = (
        np.array([row_norm(row, params.get(f"{name}_norm")) for row in rows])
        for name, rows in (("query", queries), ("key", keys))
    )
    d_key, d_value = queries.shape[1] // num_heads, values.shape[1] // num_kv_heads
    scale = 1 / math.sqrt(d_key) if scale is None else scale

    def head_of(name: str, rows: np.ndarray, position: int, n: int) -> np.ndarray:
        head = rows[position, n * d_key : (n + 1) * d_key]
        return turn(qk_norm(head, params.get(f"{name}_norm"), n), position)

    weights = np.zeros((num_heads, len(queries), len(keys)))
    outputs = []
    for t in range(len(queries)):
        heads = []
        for n in range(num_heads):
            g = n * num_kv_heads // num_heads  # neighbouring query heads share a key/value head
            q = head_of("query", queries, t, n)
            seen = [s for s in range(len(keys)) if allowed[n][t][s]]
            scores = {s: soft_capped(scale * (q @ head_of("key", keys, s, g)), soft_cap) + bias[n, t, s] for s in seen}
            total = sum(math.exp(score) for score in scores.values())
            head = np.zeros(d_value)
            for s in seen:
                weights[n, t, s] = math.exp(scores[s]) / total
                head = head + weights[n, t, s] * values[s, g * d_value : (g + 1) * d_value]
            heads.append(head)
        outputs.append(linear(np.concatenate(heads), params["out"]))
    return np.array(outputs), weights


def nothing(*_) -> float:
    return 0.0


@dataclass
class Transformer:
    """The encoder–decoder of Vaswani et al. 2017 for one sentence pair, or its decoder alone, post-norm as there or pre-norm.

    `weights` collects the attention weights `[N, T, S]` layer by layer.
    """

    params: dict
    num_heads: int
    num_kv_heads: int
    activation: str
    post_norm: bool
    scale_embeddings: bool
    norm: Callable
    """`norm(x, params)` normalises a vector."""
    position: Callable = nothing
    """`position(params, t, width)` is what position t adds to an embedding."""
    turn: Callable = as_it_is
    """`turn(head, t)` is a head of a query or key at position t, turned."""
    bias: Callable = nothing
    """`bias(params, n, offset, causal)` is added to head n's score of a key `offset` places after its query."""
    scores: dict = field(default_factory=dict)
    """More arguments of `attention`."""
    branches: str = "sequential"
    """"parallel": all sublayers read the layer's input; "parallel_one_norm": they read it after the attention's norm."""
    double_norm: bool = False
    """Whether a pre-norm sublayer's output is normalised too, before it joins the residual."""
    window: int | None = None
    window_layers: tuple[int, ...] | None = None
    """The layers with the window; None: all."""
    window_turn: Callable | None = None
    """`turn` in those layers; None: the same."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of what a sublayer adds."""
    turn_layers: tuple[int, ...] | None = None
    """The layers that turn; None: all."""
    logit_scale: float = 1.0
    logit_cap: float | None = None

    def __post_init__(self) -> None:
        self.weights: dict = {"encoder": [], "decoder": [], "cross": []}

    def __call__(self, source: list[int] | None, target: list[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Logits `[T, V]` and memory `[S, D]`; a decoder alone has neither source nor memory."""
        memory = None
        if source is not None:
            memory = self.stack("encoder", self.embed("encoder", self.table("source"), source), None)
        hidden = self.stack("decoder", self.embed("decoder", self.table("target"), target), memory)
        head = {"kernel": self.table("target").T} | self.params.get("head", {})
        logits = [linear(self.logit_scale * x, head) for x in hidden]
        return np.array([[soft_capped(x, self.logit_cap) for x in row] for row in logits]), memory

    def table(self, side: str) -> np.ndarray:
        own = f"{side}_embedding"
        return self.params[own if own in self.params else "embedding"]["embedding"]

    def embed(self, stack: str, table: np.ndarray, tokens: list[int]) -> np.ndarray:
        width = table.shape[1]
        factor = self.embedding_scale * (math.sqrt(width) if self.scale_embeddings else 1.0)
        added = self.params[stack].get("positions", {})
        return np.array([factor * table[w] + self.position(added, t, width) for t, w in enumerate(tokens)])

    def stack(self, name: str, x: np.ndarray, memory: np.ndarray | None) -> np.ndarray:
        layers = self.params[name]["layers"]
        for layer in range(len(layers["feed_forward"]["up"]["kernel"])):
            x = self.block(name, layer, take(layers, layer), x, memory)
        return x if self.post_norm else self.normalize(x, self.params[name].get("final_norm", {}))

    def block(self, stack: str, layer: int, params: dict, x: np.ndarray, memory: np.ndarray | None) -> np.ndarray:
        def cross_attention(x):
            return self.attend("cross", params["cross_attention"], x, memory, np.ones((len(x), len(memory)), bool))

        def own_attention(x):
            return self.attend_to_own(stack, layer, params["attention"], x)

        def each(x):
            return np.array([feed_forward(v, params["feed_forward"], self.activation) for v in x])

        start = x
        x = self.sublayer("attention", params, own_attention, x, start)
        if memory is not None:
            x = self.sublayer("cross_attention", params, cross_attention, x, start)
        return self.sublayer("feed_forward", params, each, x, start)

    def attend_to_own(self, stack: str, layer: int, params: dict, x: np.ndarray) -> np.ndarray:
        """A target position sees itself and what came before, within the window; positions matter here only."""
        causal, places = stack == "decoder", range(len(x))
        local = self.window is not None and (self.window_layers is None or layer in self.window_layers)
        window, turn = (self.window, self.window_turn or self.turn) if local else (len(x), self.turn)
        turn = turn if self.turn_layers is None or layer in self.turn_layers else as_it_is
        allowed = [[not causal or t - window < s <= t for s in places] for t in places]
        added = self.params[stack].get("position_bias", {})
        bias = [[[self.bias(added, n, s - t, causal) for s in places] for t in places] for n in range(self.num_heads)]
        return self.attend(stack, params, x, x, allowed, bias, turn)

    def attend(self, name: str, params: dict, query, key, allowed, bias=0.0, turn: Callable = as_it_is) -> np.ndarray:
        shape = (self.num_heads, len(query), len(key))
        allowed, bias = np.broadcast_to(allowed, shape), np.broadcast_to(bias, shape)
        heads = self.num_heads, self.num_kv_heads
        out, weights = attention(params, query, key, key, *heads, allowed, bias, turn=turn, **self.scores)
        self.weights[name].append(weights)
        return out

    def sublayer(self, name: str, params: dict, function: Callable, x: np.ndarray, start: np.ndarray) -> np.ndarray:
        if self.post_norm:
            return self.normalize(x + self.residual_scale * function(x), params.get(f"{name}_post_norm", {}))
        norm = "attention" if self.branches == "parallel_one_norm" else name
        y = function(self.normalize(x if self.branches == "sequential" else start, params.get(f"{norm}_pre_norm", {})))
        return x + self.residual_scale * (
            self.normalize(y, params.get(f"{name}_post_norm", {})) if self.double_norm else y
        )

    def normalize(self, x: np.ndarray, params: dict) -> np.ndarray:
        return np.array([self.norm(v, params) for v in x])


def take(tree: dict, layer: int) -> dict:
    """One layer's parameters out of the stacked ones."""
    return {name: take(leaf, layer) if isinstance(leaf, dict) else leaf[layer] for name, leaf in tree.items()}
