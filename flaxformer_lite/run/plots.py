"""The attention and the charts of a run, for notebooks: `run.plot_curves()`, `run.plot_attention(source)`, `run.plot_lengths()`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite import charts
from flaxformer_lite.charts import Chart
from flaxformer_lite.config import Config
from flaxformer_lite.console import suggest, warn
from flaxformer_lite.inference.generation import encode_prompt
from flaxformer_lite.model import Transformer
from flaxformer_lite.run.attention import AttentionIds, AttentionWeights, Kind, attention_weights
from flaxformer_lite.run.text_lengths import text_lengths
from flaxformer_lite.run.text_predictor import TextPredictor
from flaxformer_lite.text import Tokenizers
from flaxformer_lite.text.token_ids import TooLong, cut, cut_warning
from flaxformer_lite.workdir import RunFolder

CONTINUATION_TOKENS = 20
"""The maximum length of a continuation whose attention is drawn by default."""


def attention_axes(weights: AttentionWeights, kind: Kind) -> tuple[list[str], list[str]]:
    """Returns the labels of the rows and of the columns of a map; rows of `cross` are the tokens that are predicted there."""
    if kind == "encoder":
        return weights.source_pieces, weights.source_pieces
    if kind == "decoder":
        return weights.target_pieces, weights.target_pieces
    return [*weights.target_pieces[1:], weights.end_piece], weights.source_pieces


def common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    """Returns the number of ids that both begin with: a token across the end of a prompt is no token of the prompt."""
    pairs = zip(ids, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ids), len(others)))


def head_weights(weights: Float[np.ndarray, "L N T S"], layer: int, head: int | None) -> Float[np.ndarray, "T S"]:
    """Returns the weights of a layer and a head, each counted from 1; without a head their mean.

    Raises: ValueError if the model has no such layer or head.
    """
    for name, number, most in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
        if number is not None and not 1 <= number <= most:
            raise ValueError(f"{name} is {number}: this attention has {most}, counted from 1")
    layers = weights[layer - 1]
    return layers.mean(0) if head is None else layers[head - 1]


class RunPlots:
    """The part of a `Run` for pictures. Each `plot_` method returns a chart of Altair's (extra `report`).

    A notebook shows a chart; `chart.save("x.png")` writes it.
    """

    folder: RunFolder
    config: Config
    params: PyTree
    if TYPE_CHECKING:  # a `Run` has them

        @property
        def model(self) -> Transformer: ...
        @property
        def required_tokenizers(self) -> Tokenizers: ...
        @property
        def predictor(self) -> TextPredictor: ...
        @property
        def max_source_tokens(self) -> int: ...
        def translate(self, texts: Sequence[str]) -> list[str]: ...
        def generate(self, prompts: Sequence[str], **options: Any) -> list[str]: ...

    def own_targets(self, sources: Sequence[str]) -> Sequence[str | None]:
        """Returns the model's own translation or continuation of each source; None for each by an encoder alone."""
        if self.config.model.num_decoder_layers == 0:
            return [None for _ in sources]
        if self.config.model.num_encoder_layers:
            return self.translate(sources)
        return self.generate(sources, max_new_tokens=CONTINUATION_TOKENS)

    def attention(self, source: str, target: str | None = None) -> AttentionWeights:
        """Returns every layer's attention weights while the model reads `source` and writes `target`, by default `own_targets`.

        An encoder alone has no target; [MASK] is a masked token in its source. A decoder alone reads a prompt and its continuation.
        Truncates texts longer than the config allows, with a warning each.

        Example: `run.attention("20 November 2026", "2026-11-20").cross.shape`, which is [L, N, T, S].

        Raises: ValueError if there is a target, but the model is an encoder alone.
        """
        if target is None:
            (target,) = self.own_targets([source])
        elif self.config.model.num_decoder_layers == 0:
            raise ValueError("the model has no decoder (model.num_decoder_layers is 0): leave out the target")
        return self.attention_of_ids(self.attention_ids(source, target, cut_warning(warn)))

    def attention_ids(self, source: str, target: str | None, too_long: TooLong) -> AttentionIds:
        """Returns the token ids that the model reads, cut to what the config allows.

        `target` is None for an encoder alone. `too_long` is called for each text that is cut.
        """
        config, tokenizers = self.config, self.required_tokenizers

        if target is None:
            text, most = self.predictor.text_ids(source), self.predictor.max_tokens
            cut(tokenizers.source.with_special_tokens(text).tokens, most, "text", "max_source_length", too_long)
            return AttentionIds(tokenizers.source.truncated([text], most).tokens, [], 0)
        if config.model.num_encoder_layers == 0:
            prompt, whole = (
                encode_prompt(tokenizers.target, text, config.decode.bos_id) for text in (source, source + target)
            )
            ids = cut(whole, config.data.longest.target, "text", "max_target_length", too_long)
            full = config.objective.prompt_attention == "full"
            return AttentionIds([], ids, common_length(ids, prompt) if full else 0)
        most, most_of_target = self.max_source_tokens, config.data.longest.target - 1
        sources = cut(tokenizers.source.encode(source), most, "source", "max_source_length", too_long)
        targets = cut(tokenizers.target.encode(target), most_of_target, "target", "max_target_length", too_long)
        return AttentionIds(tokenizers.source.as_source(sources), [config.decode.start_id, *targets], 0)

    def attention_of_ids(self, ids: AttentionIds) -> AttentionWeights:
        """Returns every layer's attention weights for what `attention_ids` returned."""
        return attention_weights(self.model, self.params, self.required_tokenizers, *ids)

    def plot_curves(self, *others: "RunPlots", metric: str = "loss") -> Chart:
        """Returns the curves of a metric in training and in evaluations, of this run and of others.

        Example: `run.plot_curves(flaxformer_lite.load("runs/other"), metric="learning_rate")`.

        Raises: ValueError if no run has the metric.
        """
        folders = [run.folder for run in (self, *others)]
        found = charts.curves_of(dict(zip(run_names(folders), (f.rows() for f in folders), strict=True)))
        if metric not in found:
            raise ValueError(
                f"metrics.jsonl has no {metric!r}: it has {', '.join(found) or 'no rows'}{suggest(metric, found)}"
            )
        return charts.line_chart(metric, found[metric])

    def plot_attention(
        self,
        source: str,
        target: str | None = None,
        *,
        kind: Kind | None = None,
        layer: int | None = None,
        head: int | None = None,
    ) -> Chart:
        """Returns the map of attention weights while the model reads `source` and writes `target`.

        `target` is by default the model's own answer, see `attention`. `kind`: by default cross attention if the model has it.
        `layer` and `head` count from 1; by default the last layer, and the mean of its heads.

        Example: `run.plot_attention("20 November 2026", head=2)`.

        Raises: ValueError if the model has no such attention, layer or head.
        """
        return attention_chart(self.attention(source, target), kind, layer, head)

    def plot_lengths(self) -> Chart:
        """Returns the histogram of the lengths of the first 10,000 training texts, in tokens.

        Raises: ValueError if the data cannot be read, or the run has no tokenizer.
        """
        lengths = text_lengths(self.config, self.required_tokenizers)
        return charts.histogram("lengths of training texts", lengths.counts, "tokens")


def attention_chart(weights: AttentionWeights, kind: Kind | None, layer: int | None, head: int | None) -> Chart:
    """Returns the map of one layer and head; by default of the last layer, with the mean of its heads.

    Raises: ValueError if the model has no such attention, layer or head.
    """
    if kind is None:
        kind = weights.kinds[0]
    elif kind not in weights.kinds:
        raise ValueError(f"kind is {kind!r}, but this model has {weights.kinds[0]} attention only: leave it out")
    array: Float[np.ndarray, "L N T S"] = getattr(weights, kind)
    layer = len(array) if layer is None else layer
    title = f"{kind} attention, layer {layer}, " + ("mean of heads" if head is None else f"head {head}")
    return charts.attention_map(head_weights(array, layer, head), *attention_axes(weights, kind), title)


def run_names(folders: Sequence[RunFolder]) -> list[str]:
    """Returns a name for each run that no other has: the last part of its path, or the whole path."""
    short = [folder.path.resolve().name for folder in folders]
    names = [name if short.count(name) == 1 else str(f.path) for name, f in zip(short, folders, strict=True)]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]
