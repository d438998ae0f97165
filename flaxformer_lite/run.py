"""A trained run, for use: `run = flaxformer_lite.load("runs/quickstart"); run.translate(["20 November 2026"])`."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.checkpoint import Checkpoints
from flaxformer_lite.config import Config, check_weights
from flaxformer_lite.data.pipeline import Dataset, Tokenizers, cut, tokenize
from flaxformer_lite.data.records import Pair, TokenPair
from flaxformer_lite.decoding import DecodeConfig, Decoder
from flaxformer_lite.parallel import abstract, make_mesh
from flaxformer_lite.progress import warn
from flaxformer_lite.run_folder import RunFolder
from flaxformer_lite.tokenizer import BOS, EOS
from flaxformer_lite.trainer import open_checkpoints
from flaxformer_lite.training import Compiled, Task, mean_metrics
from flaxformer_lite.transformer import Inputs, Transformer


@dataclass(frozen=True)
class Translation:
    """One hypothesis: its text, and the score that ranks it (`decode.length_penalty` says by which formula)."""

    text: str
    score: float


@dataclass(frozen=True)
class AttentionWeights:
    """The weights of every layer for one pair of texts, and the pieces along their axes.

    `decoder` rows stand for what the decoder reads: BOS, then the target. Row i decides on piece i + 1.
    """

    source_pieces: list[str]
    target_pieces: list[str]
    encoder: Float[np.ndarray, "L N S S"]
    decoder: Float[np.ndarray, "L N T T"]
    cross: Float[np.ndarray, "L N T S"]


def ignore(*_: Any) -> None:
    """A progress callback that says nothing."""


@dataclass(frozen=True)
class Run:
    """A model with its parameters, tokenizers and config. `load` makes one."""

    folder: RunFolder
    config: Config
    params: PyTree
    tokenizers: Tokenizers
    step: int
    """The step of the checkpoint the parameters are from; of an average, the newest one's."""
    decoders: dict[DecodeConfig, Decoder] = dataclasses.field(default_factory=dict, repr=False)
    """Decoders by their settings, kept because each compiles its own steps."""

    @cached_property
    def model(self) -> Transformer:
        return Transformer(self.config.model)

    def translate(self, texts: Sequence[str], **decode: Any) -> list[str]:
        """The best translation of each text, in order; an empty one for an empty text.

        `decode` overrides settings of `DecodeConfig` by name, for example `beam_size=5`.
        """
        return [hypotheses[0].text for hypotheses in self.hypotheses(texts, **decode)]

    def hypotheses(
        self,
        texts: Sequence[str],
        *,
        progress: Callable[[int, int], None] = ignore,
        warn: Callable[[str], None] = warn,
        first_line: int = 1,
        **decode: Any,
    ) -> list[list[Translation]]:
        """The `decode.num_hypotheses` best translations of each text, best first; one empty one for an empty text.

        A text of more than `data.max_source_length` tokens is cut, which `warn` is told with its line number.
        """
        ids = self.tokenizers.source.encode_batch(list(texts))
        records = [TokenPair(np.asarray(tokens, np.int32), np.zeros(0, np.int32)) for tokens in ids]
        records = cut(records, self.config.data.longest, warn, first_line)
        filled = [i for i, record in enumerate(records) if len(record.source) and texts[i].strip()]
        sources = [[*records[i].source.tolist(), EOS] for i in filled]
        answers = self.decoder(**decode).generate({"params": self.params}, sources, progress=progress)
        translations = [[Translation("", 0.0)] for _ in texts]
        for i, hypotheses in zip(filled, answers, strict=True):
            translations[i] = [Translation(self.tokenizers.target_text(h.tokens), h.score) for h in hypotheses]
        return translations

    def decoder(self, **decode: Any) -> Decoder:
        settings = dataclasses.replace(self.config.decode, **decode)
        return self.decoders.setdefault(settings, Decoder(self.model, settings))

    def metrics(self, pairs: Sequence[Pair], *, progress: Callable[[int, int], None] = ignore) -> dict[str, float]:
        """The objective's metrics on some pairs: loss in unsmoothed nats per target token, perplexity, accuracy."""
        config = self.config
        records = cut(tokenize(pairs, self.tokenizers), config.data.longest, warn)
        dataset = Dataset(records, config.objective, config.data, config.train.seed)
        shapes = len(dataset.plan.buckets)
        compiled = Compiled.of(Task.of(config), make_mesh(), train_shapes=0, eval_shapes=shapes)
        return mean_metrics(compiled, self.params, dataset, progress)

    def attention(self, source: str, target: str) -> AttentionWeights:
        """Every layer's attention weights while the model reads `source` and writes `target`."""
        tokens = [*self.tokenizers.source.encode(source), EOS], [BOS, *self.tokenizers.target.encode(target)]
        inputs = Inputs(source_tokens=jnp.asarray(tokens[0])[None], target_tokens=jnp.asarray(tokens[1])[None])
        _, found = self.model.apply({"params": self.params}, inputs, mutable=["intermediates"])

        def weights(stack: str, attention: str) -> Float[np.ndarray, "L N T S"]:
            return np.asarray(found["intermediates"][stack]["layers"][attention]["weights"][0][:, 0])

        return AttentionWeights(
            source_pieces=self.tokenizers.source.pieces(tokens[0]),
            target_pieces=self.tokenizers.target.pieces(tokens[1]),
            encoder=weights("encoder", "attention"),
            decoder=weights("decoder", "attention"),
            cross=weights("decoder", "cross_attention"),
        )


def abstract_params(config: Config) -> PyTree:
    """Shapes and types of the parameters, to be restored onto every device here."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    inputs = Inputs(source_tokens=tokens, target_tokens=tokens)
    shapes = jax.eval_shape(Transformer(config.model).init, jax.random.key(0), inputs)["params"]
    return abstract(shapes, make_mesh())


def restore_weights(checkpoints: Checkpoints, config: Config, weights: str, step: int | None) -> tuple[int, PyTree]:
    """The step and the parameters that `weights` (last, best, ema or average:N) stands for.

    Raises: ValueError where there are none.
    """
    check_weights(weights, config)
    shapes = abstract_params(config)
    if step is not None and weights not in ("last", "ema"):
        raise ValueError(
            f"weights {weights!r} have no --step of their own: leave out --step {step}, or choose last or ema"
        )
    if step is not None:
        return step, checkpoints.restore_params(shapes, step, field="ema" if weights == "ema" else "params")
    if weights.startswith("average:"):
        params = checkpoints.average(shapes, int(weights.removeprefix("average:")))
        return checkpoints.latest() or 0, params
    if weights == "best":
        best = checkpoints.best()
        if best is None:
            raise ValueError("no checkpoint has been evaluated yet, so none is the best: use --weights last")
        return best, checkpoints.restore_params(shapes, best)
    newest = checkpoints.newest_whole()
    return newest, checkpoints.restore_params(shapes, newest, field="ema" if weights == "ema" else "params")


def load(path: str | Path, *, weights: str | None = None, step: int | None = None) -> Run:
    """The run in a folder, ready to use.

    weights: last, best, ema or average:N; by default what the config's `weights` says.
    step: the checkpoint of that step (then `weights` is last or ema).

    Raises: ValueError where the folder holds no run, or not those weights.
    """
    folder = RunFolder(path)
    config = folder.config()
    with open_checkpoints(config, folder, read_only=True) as checkpoints:
        step, params = restore_weights(
            checkpoints, config, weights or (config.weights if step is None else "last"), step
        )
    return Run(folder, config, params, folder.load_tokenizers(config.data), step)
