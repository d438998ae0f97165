"""A trained run, for use: `run = flaxformer_lite.load("runs/quickstart"); run.translate(["20 November 2026"])`."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.atomic_files import require_absent, write_whole
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.serialize import to_json
from flaxformer_lite.console import warn
from flaxformer_lite.data.dataset import Dataset, evaluation_records, tokenize, truncate
from flaxformer_lite.data.records import Pair, TokenPair
from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.inference.decoder import Decoder, Hypothesis, check_translates
from flaxformer_lite.inference.forward import ModelOutput, forward
from flaxformer_lite.inference.generation import check_goes_on, check_ids, decode_settings, generated, streamed
from flaxformer_lite.inference.translation import Translation, translate
from flaxformer_lite.model.inputs import Inputs
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.parallel.mesh import check_rows, make_mesh
from flaxformer_lite.run.text_predictor import ClassPrediction, TextPredictor, TokenPrediction
from flaxformer_lite.text.tokenizer import Tokenizers
from flaxformer_lite.text.unknown import UnknownText
from flaxformer_lite.training.evaluation import mean_metrics
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.training.runners import MeshRunner
from flaxformer_lite.training.step import TrainTask
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import open_checkpoints, restore_weights


@dataclass(frozen=True)
class AttentionWeights:
    """The weights of every layer for one pair of texts, and the pieces along their axes.

    `decoder` rows stand for what the decoder reads: `decode.bos_id`, then the target. Row i decides on piece i + 1.
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
    tokenizers: Tokenizers | None
    """None where the weights came from elsewhere without any."""
    step: int
    """The step of the checkpoint the parameters are from; of an average, the newest one's."""
    decoders: dict[DecodeConfig, Decoder] = dataclasses.field(default_factory=dict, repr=False)
    """Decoders by their settings, kept because each compiles its own steps."""

    @cached_property
    def model(self) -> Transformer:
        return Transformer(self.config.model.for_use)

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

        A text of more than `data.max_source_length` tokens is cut, which `warn` is told with its line number, and what the
        tokenizer does not know, once.
        """
        if isinstance(texts, str):
            raise ValueError(f"texts is one string, {texts[:40]!r}: give a list of them")
        self.unknown.report(texts, warn)
        records = self.records([Pair(text if text.strip() else "", "") for text in texts], warn, first_line)
        sources = [record.source for record in records]
        return translate(self.translator(**decode), self.params, sources, self.required_tokenizers, progress)

    def hypotheses_of_ids(
        self,
        sources: Sequence[Sequence[int]],
        *,
        progress: Callable[[int, int], None] = ignore,
        name: str = "sources",
        first_line: int = 1,
        **decode: Any,
    ) -> list[list[Hypothesis]]:
        """The same for token ids, which are read as they are: no EOS is added, and `decode.pad_id` is padding.

        `name` and `first_line` say in messages where they are from.

        Raises: ValueError where an id is none of the vocabulary, or a source has more ids than `data.max_source_length`.
        """
        size, most = self.config.model.vocab_size, self.config.data.max_source_length
        for number, source in enumerate(sources, first_line):
            if wrong := [i for i in source if not 0 <= i < size]:
                raise ValueError(f"{name}, line {number}: {wrong[0]} is no token id, model.vocab_size is {size}")
            if len(source) > most:
                raise ValueError(
                    f"{name}, line {number} has {len(source)} ids, data.max_source_length is {most}: shorten it"
                )
        decoder = self.translator(**decode)
        filled = [i for i, source in enumerate(sources) if any(token != decoder.config.pad_id for token in source)]
        found = decoder.generate({"params": self.params}, [sources[i] for i in filled], progress)
        answers: list[list[Hypothesis]] = [[Hypothesis([], 0.0)] for _ in sources]
        for i, answer in zip(filled, found, strict=True):
            answers[i] = answer
        return answers

    # Going on with a text --------------------------------------------------------------------------------------------

    def generate(self, prompts: Sequence[str], **settings: Any) -> list[str]:
        """The text that goes on from each prompt, in order; of several drawn the first. `settings` are those of `continuations`."""
        return [texts[0].text for texts in self.continuations(prompts, **settings)]

    def continuations(
        self,
        prompts: Sequence[str],
        *,
        stop: Sequence[str] = (),
        seed: int = 0,
        first: int = 0,
        progress: Callable[[int, int], None] = ignore,
        warn: Callable[[str], None] = warn,
        **decode: Any,
    ) -> list[list[Translation]]:
        """The `decode.num_hypotheses` texts that go on from each prompt, with scores.

        `decode` overrides settings of `DecodeConfig` and `Sampling` by name, for example `max_new_tokens=50, temperature=0.8`. A
        text ends before the first of the `stop` strings in it. What is drawn depends on the seed and the number of the prompt,
        counted from `first`. What the tokenizer does not know `warn` is told once.

        Raises: ValueError where the model does not go on with texts, or a prompt is longer than it has positions for.
        """
        if isinstance(prompts, str):
            raise ValueError(f"prompts is one string, {prompts[:40]!r}: give a list of them")
        decoder, tokenizer = self.generator(**decode), self.required_tokenizers.target
        self.unknown.report(prompts, warn)
        return generated(decoder, self.params, tokenizer, prompts, stop=stop, seed=seed, first=first, progress=progress)

    def continuations_of_ids(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seed: int = 0,
        first: int = 0,
        progress: Callable[[int, int], None] = ignore,
        **decode: Any,
    ) -> list[list[Hypothesis]]:
        """The same for token ids, which are read as they are: no BOS is added."""
        decoder = self.generator(**decode)
        check_ids(prompts, self.config.model.vocab_size, first)
        return decoder.generate({"params": self.params}, prompts, progress, seed=seed, first=first)

    def stream(
        self,
        prompt: str,
        *,
        stop: Sequence[str] = (),
        seed: int = 0,
        first: int = 0,
        warn: Callable[[str], None] = warn,
        **decode: Any,
    ) -> Iterator[str]:
        """The text that `generate` gives for this prompt alone, in parts, as they are written."""
        decoder, tokenizer = self.generator(**decode), self.required_tokenizers.target
        self.unknown.report([prompt], warn)
        return streamed(decoder, self.params, tokenizer, prompt, stop=stop, seed=seed, first=first)

    def generator(self, **decode: Any) -> Decoder:
        """The decoder that goes on with prompts by the config's settings with some overridden, those of `Sampling` too."""
        check_goes_on(self.config.model)
        settings = decode_settings(self.config.decode, decode)
        return self.decoders.setdefault(settings, Decoder(self.model, settings, self.config.objective.prompt_attention))

    @cached_property
    def unknown(self) -> UnknownText:
        """What tells of sources and prompts that the tokenizer does not know them."""
        return UnknownText(self.required_tokenizers.source)

    @property
    def required_tokenizers(self) -> Tokenizers:
        """The tokenizers. Raises: ValueError where the run has none."""
        if self.tokenizers is None:
            raise ValueError(
                f"the run {self.folder.path} has no tokenizer, so it knows token ids only: use the option --ids of translate or "
                "generate, or forward from Python"
            )
        return self.tokenizers

    def records(self, pairs: Sequence[Pair], warn: Callable[[str], None], first_line: int = 1) -> list[TokenPair]:
        """The pairs as token ids, cut to the lengths that the config allows, which `warn` is told with the line numbers."""
        return truncate(tokenize(pairs, self.required_tokenizers), self.config.data.longest, warn, first_line)

    def translator(self, **decode: Any) -> Decoder:
        """The decoder that answers sources by the config's settings with some overridden; the same one for the same settings."""
        check_translates(self.config.model)
        settings = dataclasses.replace(self.config.decode, **decode)
        return self.decoders.setdefault(settings, Decoder(self.model, settings))

    def metrics(
        self,
        pairs: Sequence[Pair],
        *,
        progress: Callable[[int, int], None] = ignore,
        warn: Callable[[str], None] = warn,
    ) -> dict[str, float]:
        """The objective's metrics on some pairs or documents: loss in unsmoothed nats per token, perplexity, accuracy.

        Raises: ValueError where the rows of a batch do not divide over the devices.
        """
        config, mesh = dataclasses.replace(self.config, model=self.config.model.for_use), make_mesh()
        check_rows(config.data.rows_multiple, mesh)
        tokenizers = self.required_tokenizers
        records = evaluation_records(pairs, tokenizers, config.objective, config.data.longest, warn)
        dataset = Dataset(records, config.objective, config.data, None, tokenizers.target, config.decode.bos_id)
        runner = MeshRunner(TrainTask.of(config), mesh, train_shapes=0, eval_shapes=len(dataset.plan.buckets))
        return mean_metrics(runner, self.config.objective, self.params, dataset, progress)

    def forward(self, **arguments: Any) -> ModelOutput:
        """What the model says of arrays of token ids, under the ecosystem's names: `input_ids`, `attention_mask`, `token_type_ids`,
        `position_ids`, `decoder_input_ids`, `decoder_attention_mask`; vectors as `inputs_embeds` where it has no vocabulary.

        Raises: ValueError where one of them is unknown to such a model, missing, or of another shape than it should be.
        """
        return forward(self.model, {"params": self.params}, self.config.decode, **arguments)

    def embed(self, texts: Sequence[str], **told: Any) -> Float[np.ndarray, "N D"]:
        """The vector of each text, by `model.sentence_embedding`; a text of more than `data.max_source_length` tokens is cut.

        `progress`, `warn` and `first_line` are as in `hypotheses`.
        """
        return self.reader.embed(texts, **told)

    def classify(self, texts: Sequence[str | tuple[str, str]], **told: Any) -> list[ClassPrediction]:
        """The class of each text or pair of texts with its probability, or its number where the model has learned numbers.

        Classes are called as in `objective.classes`, else "0", "1" and so on. Long texts are cut as `embed` does.
        """
        return self.reader.classify(texts, **told)

    def fill_mask(self, texts: Sequence[str], top: int = 5, **told: Any) -> list[list[list[TokenPrediction]]]:
        """For each text, and each [MASK] in it, the `top` most probable tokens, most probable first.

        A text without a mask is told to `warn`, as are long ones, which are cut as `embed` does.

        Raises: ValueError where the model is no masked language model.
        """
        return self.reader.fill_mask(texts, top, **told)

    @cached_property
    def reader(self) -> TextPredictor:
        """What reads whole texts; kept because it compiles its own steps."""
        return TextPredictor(self.config, self.params, self.required_tokenizers.source, str(self.folder.path))

    def attention(self, source: str, target: str) -> AttentionWeights:
        """Every layer's attention weights while the model reads `source` and writes `target`.

        Texts longer than the config allows are cut, with a warning.
        """
        (record,) = self.records([Pair(source, target)], warn)
        sources = self.required_tokenizers.source.as_source(record.source.tolist())
        targets = [self.config.decode.bos_id, *record.target.tolist()]
        inputs = Inputs(source_tokens=jnp.asarray([sources]), target_tokens=jnp.asarray([targets]))
        look = jax.jit(functools.partial(self.model.apply, mutable=["intermediates"]))
        _, found = look({"params": self.params}, inputs)

        def weights(stack: str, attention: str) -> Float[np.ndarray, "L N T S"]:
            return np.asarray(found["intermediates"][stack]["layers"][attention]["weights"][0][:, 0])

        return AttentionWeights(
            source_pieces=self.required_tokenizers.source.pieces(sources),
            target_pieces=self.required_tokenizers.target.pieces(targets),
            encoder=weights("encoder", "attention"),
            decoder=weights("decoder", "attention"),
            cross=weights("decoder", "cross_attention"),
        )


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
    tokenizers = None if config.data.tokenizer is None else folder.load_tokenizers(config.data)
    return Run(folder, config, params, tokenizers, step)


def write_run(
    output: RunFolder,
    config: Config,
    step: int,
    params: PyTree,
    origin: str,
    *,
    tokenizers: Tokenizers | None = None,
    imported: dict[str, Any] | None = None,
) -> None:
    """Makes a run folder of parameters that were not trained there; `origin` says where they come from.

    Raises: ValueError where the folder exists already.
    """
    require_absent(output.path)
    if tokenizers is not None:
        tokenizers.source.save(output.path)
        if config.data.target_tokenizer is not None:
            tokenizers.target.save(output.path, "target_tokenizer")
    with open_checkpoints(config, output, read_only=False) as checkpoints:
        checkpoints.save(step, {"params": params}, dataclasses.asdict(LoopState(data="", parameters_only=origin)))
    if imported is not None:
        write_whole(output.path / "imported.json", json.dumps(imported, indent=2) + "\n")
    # Written last: without it the folder is no run.
    write_whole(output.path / "config.json", to_json(config))
