"""Evaluation: the objective's metrics over a whole dataset and, during training, text metrics of greedy translations."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Int, PyTree

from flaxformer_lite.base.console import warn
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.groups import groups_of
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.objectives import BaseObjective, Batch, Counts, LossTerm, PerRowMetric
from flaxformer_lite.core.parallel import MeshConfig
from flaxformer_lite.core.parallel.sharding import gather_to_each, shard_bytes
from flaxformer_lite.core.placement.placement import Placement, Prepared
from flaxformer_lite.core.runners import Runner
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.devices import GIB, TooLarge, Workload, device_groups, memory_of
from flaxformer_lite.core.search.generation import decode_after, encode_prompt, generation_settings
from flaxformer_lite.core.search.request import Request, requests_in_order
from flaxformer_lite.core.text import LanguageTokenizers, Tokenizer, Tokenizers
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.chats.chat import ChatTokenizers
from flaxformer_lite.files.chats.form import AskedPair, Sources
from flaxformer_lite.files.data.reading import EvalData
from flaxformer_lite.metrics.translations import of_parts, resolve, text_scores, with_language, with_references
from flaxformer_lite.tasks import scored_by
from flaxformer_lite.tasks.jax_model import JaxModel
from flaxformer_lite.tasks.task import Task
from flaxformer_lite.training.multihost.agreement import Processes
from flaxformer_lite.workdir.folder import NUM_SAMPLES, RunFolder
from flaxformer_lite.workdir.samples import evaluation_name

ANSWERED_AT_ONCE = 256
"""Labelled pairs that a process answers in a round."""
BatchCounts = dict[str, list[LossTerm | PerRowMetric]]
"""For each metric the sums and counts of every batch."""


def check_sample_prompts(decoder: Decoder, tokenizer: Tokenizer, prompts: Sequence[str]) -> None:
    """Raises: ValueError for a prompt that the model cannot continue, at the start and not at the first evaluation."""
    try:
        decoder.check(requests_in_order(encode_prompt(tokenizer, prompt, decoder.config.bos_id) for prompt in prompts))
    except ValueError as error:
        raise ValueError(f"train.sample_prompts: {error}") from None


@runtime_checkable
class BatchCounter(Protocol):
    """Counter of the objective's metrics in a batch: a `Runner`, or `EngineRunner`."""

    def local_rows(self, num_rows: int) -> Int[np.ndarray, "R"]:
        """Returns the rows of a batch that this process reads."""

    def shard_batch(self, batch: Batch) -> Batch:
        """Returns these rows where `eval_step` reads them."""

    def eval_step(self, params: PyTree, batch: Batch) -> Counts:
        """Returns the sums and counts of a batch."""


def mean_metrics(
    runner: BatchCounter,
    objective: BaseObjective,
    params: PyTree,
    datasets: Sequence[Dataset],
    parts: Iterable[str],
    progress: ProgressCallback,
) -> dict[str, float]:
    """Returns the objective's metrics over all datasets together, from float64 sums of each batch's sums and counts.

    Args:
        parts: the name of each dataset of a mixture, which then has metrics of its own, such as `de/loss`; else empty.
    """
    counted = [count(runner, params, dataset, progress) for dataset in datasets]
    metrics = report(objective, *counted)
    for source, counts in zip(parts, counted, strict=False):
        metrics |= {f"{source}/{name}": value for name, value in report(objective, counts).items()}
    return metrics


def count(runner: BatchCounter, params: PyTree, dataset: Dataset, progress: ProgressCallback) -> BatchCounts:
    """Returns each metric's sums and counts of every batch."""
    batches = dataset.plan.batches_per_epoch
    counted: BatchCounts = {}
    for i in range(batches):
        metrics = runner.eval_step(params, runner.shard_batch(dataset.batch(i, runner.local_rows)))
        for name, of_batch in jax.device_get(metrics).items():
            counted.setdefault(name, []).append(of_batch)
        progress("evaluating", i + 1, batches)
    return counted


def report(objective: BaseObjective, *counted: BatchCounts) -> dict[str, float]:
    """Returns the objective's metrics over one dataset, or over several together."""
    merged = dict[str, LossTerm | PerRowMetric]()
    for name in counted[0]:
        of_batches = list(itertools.chain.from_iterable(counts[name] for counts in counted))
        merged[name] = merge_counts(of_batches)
    return objective.report(merged)


def merge_counts(parts: Sequence[LossTerm | PerRowMetric]) -> LossTerm | PerRowMetric:
    """Merges a metric's counts of all batches: adds sums and counts, or joins all rows of non-zero weight."""
    if isinstance(parts[0], LossTerm):
        sums = np.sum([np.asarray(of_batch[0], np.float64) for of_batch in parts], 0)
        counts = np.sum([np.asarray(of_batch[1], np.float64) for of_batch in parts], 0)
        return LossTerm(sums, counts)
    values = np.concatenate([np.asarray(of_batch[0]) for of_batch in parts])
    weights = np.concatenate([np.asarray(of_batch[1]) for of_batch in parts])
    return PerRowMetric(values[weights > 0], weights[weights > 0])  # type: ignore[arg-type]  # NumPy's, on the host


def placed_groups(config: Config, decode: DecodeConfig, runner: Runner) -> Placement:
    """Returns the groups of this process's devices that answer, beside the state of the training on each.

    Parameters that training has whole on each device stay so. Others are divided over as few devices as the memory allows: these
    sum in another order, which may decide between tokens whose scores differ only in the last bits.

    Raises: TooLarge if the devices of this process have not the memory for a whole model.
    """
    devices, mesh = runner.mesh.local_devices, runner.mesh.shape
    workload = Workload((config.model.for_use,), decode, config.data.longest.source)
    if mesh["fsdp"] * mesh["tensor"] == 1:
        return device_groups(workload, MeshConfig(), devices)
    memory = memory_of(devices[0])
    if memory is not None:
        memory = max(1, memory - shard_bytes(runner.abstract_state))
        needed = workload.parameter_bytes(1) if len(devices) == 1 else 0
        if needed > memory:
            raise TooLarge(
                f"the model does not fit: a process has 1 device, which needs {needed / GIB:.2f} GiB for parameters and has "
                f"{memory / GIB:.2f} GiB beside the training's state"
            )
    return device_groups(workload, devices=devices, memory=memory)


class AnswerScoring(NamedTuple):
    """Questions on pairs, and the decoder that answers them."""

    form: Sources | Asking
    questions: Sequence[AskedPair | None]
    """By the numbers of the pairs; None: no question."""
    decoder: Decoder

    @property
    def references(self) -> list[str | None]:
        return [one and one.reference for one in self.questions]


class Evaluator:
    """Evaluates parameters on `data.eval`; writes its answers, or what continues `train.sample_prompts`, to the run folder.

    Each process answers its share of the sources or prompts on its own devices; all have the same answers and metrics.
    """

    def __init__(
        self,
        config: Config,
        data: EvalData,
        tokenizers: Tokenizers,
        runner: Runner,
        folder: RunFolder,
        processes: Processes,
    ):
        self.config, self.data, self.tokenizers = config, data, tokenizers
        self.runner, self.folder, self.processes = runner, folder, processes
        # Decoding during training is greedy: fast, and close enough to rank checkpoints.
        greedy = replace(config.decode, beam_size=1, num_hypotheses=1)
        settings = greedy if config.objective.translates else generation_settings(greedy, {})
        if isinstance(tokenizers, LanguageTokenizers) and data.pairs:  # one program for all languages
            settings = replace(settings, **tokenizers.ids_of(data.pairs[0].languages).decode)
        self.decoder = self._decoder(settings)
        if self.decoder is not None:
            check_sample_prompts(self.decoder, tokenizers.target, config.train.sample_prompts)
        self.scoring = self._scoring(greedy)
        self.task = scored_by(config.objective)
        self.text_model = None
        if self.task is not None:
            placement = placed_groups(config, greedy, runner)
            self.text_model = JaxModel(folder.name, config, tokenizers, None, placement)
        self.metrics = config.metrics
        source = config.data.source("eval")
        if source is not None:
            self.metrics = with_language(self.metrics, source.target_names())
        if self.scoring is not None and "bleu" in config.train.text_metrics:  # refuses now what is not installed
            resolve(self.metrics, [one for one in self.scoring.references if one is not None])

    def _decoder(self, settings: DecodeConfig) -> Decoder | None:
        """Returns the decoder of the texts; None without texts, or with only samples of a translator that does not fit.

        Raises: ValueError if a model whose texts are asked for does not fit the devices of this process.
        """
        config, train = self.config, self.config.train
        is_asked = bool(train.text_metrics or train.sample_prompts)
        if not is_asked and not (config.objective.translates and config.model.attention.decodes):
            return None
        try:
            placement = placed_groups(config, settings, self.runner)
        except TooLarge as error:
            if is_asked or config.objective.text_metric_names:
                raise ValueError(
                    f"train.text_metrics is {train.text_metrics} and train.sample_prompts is {train.sample_prompts}, which the "
                    f"devices of each process compute, but {error}: set both to (), or use more devices a process"
                ) from None
            if self.processes.is_first:
                warn(f"evaluations write no samples: {error}")
            return None
        return Decoder(Transformer(config.model.for_use, placement.tensor), settings, placement=placement)

    def _scoring(self, greedy: DecodeConfig) -> AnswerScoring | None:
        """Returns what answers sources, or conversations with text metrics; None: nothing does. Raises: ValueError."""
        train, longest, tokenizers = self.config.train, self.config.data.longest, self.tokenizers
        if self.decoder is None:
            return None
        if self.config.objective.translates:
            sources = Sources(tokenizers, greedy, longest.source, self.folder.name)
            pairs = self.data.pairs[: None if self._text_metric_names else NUM_SAMPLES]
            return AnswerScoring(sources, sources.questions(pairs), self.decoder)
        if not train.text_metrics or not isinstance(tokenizers, ChatTokenizers):
            return None
        form = Asking(tokenizers, greedy, longest.target, tokenizers.template, tokenizers.translation)
        try:
            questions = form.questions(self.data.pairs)
        except ValueError as error:
            raise ValueError(f"train.text_metrics is {train.text_metrics}: {error}") from None
        decoder = Decoder(self.decoder.models, form.settings({}), placement=self.decoder.placement)
        return AnswerScoring(form, questions, decoder)

    @property
    def layout(self) -> str:
        """The groups of devices that answer in this process and the devices of each; all processes have the same."""
        answers = self.decoder or self.text_model
        return "none" if answers is None else f"{answers.placement.groups} x {answers.placement.tensor}"

    def evaluate(self, step: int, params: PyTree, progress: ProgressCallback) -> dict[str, float]:
        """Returns the metrics of the parameters at `step`: over all data and, of a mixture, over each source.

        All processes call `progress` equally often: it may end the evaluation in all.
        """
        progress("evaluating", 0, self.data.datasets[0].plan.batches_per_epoch)
        objective = self.config.objective
        metrics = mean_metrics(self.runner, objective, params, self.data.datasets, self.data.parts, progress)
        if self.task is not None and self.text_model is not None:
            whole = gather_to_each(params, self.text_model.placement.mesh)
            metrics |= self._score(self.task, replace(self.text_model, params=whole), progress)
        if self.decoder is None:
            return metrics
        variables = {"params": gather_to_each(params, self.decoder.placement.mesh)}
        name = evaluation_name(step)
        if self.scoring is not None:
            metrics |= self._answer(self.scoring, variables, name, progress)
        if self.scoring is None or self.config.train.sample_prompts:
            self._continue(self.decoder, variables, name, progress)
        return metrics

    def _score(self, task: Task[object, object], model: JaxModel, progress: ProgressCallback) -> dict[str, float]:
        """Returns the figures of a task's answers. In a round each process answers some pairs, and `progress` is called."""
        pairs, texts, done = self.data.pairs, dict[int, str](), 0
        calls = [
            list(range(len(pairs)))[start : start + ANSWERED_AT_ONCE]
            for start in range(0, len(pairs), ANSWERED_AT_ONCE)
        ]
        for members, number in self.processes.rounds(calls):
            answers = task.texts(model, [pairs[i] for i in members], warn=lambda line: None)
            texts |= zip(members, answers, strict=True)
            done += number
            progress("answering", done, len(pairs))
        texts = self.processes.merge(texts)
        return task.scores(pairs, [texts[i] for i in range(len(pairs))], self.data.parts)

    def _answer(
        self, scoring: AnswerScoring, variables: VariableDict, name: str, progress: ProgressCallback
    ) -> dict[str, float]:
        """Writes the answers to questions under `name`, and returns their text metrics; without text metrics, samples only."""
        form, questions, decoder = scoring
        requests = [
            Request(()) if one is None else Request(one.ids, one.settings, index=i) for i, one in enumerate(questions)
        ]
        configs = [one.settings or decoder.config for one in requests]
        texts = [""] * len(requests)
        for members in groups_of(config.num_ids for config in configs).values():  # one program each
            asked = [requests[i] for i in members]

            def text_of(n: int, tokens: Sequence[int], members: Sequence[int] = members) -> str:
                question = questions[members[n]]
                return form.written(tokens, question and question.source)

            answers = self._answers(decoder.under(configs[members[0]]), variables, asked, text_of, progress)
            for i, text in zip(members, answers, strict=True):
                texts[i] = text
        answered = [(text, one) for text, one in zip(texts, questions, strict=True) if one is not None]
        hypotheses = [text for text, _ in answered]
        pairs = [Pair(one.source or "", one.reference) for _, one in answered]
        if not self._text_metric_names:
            self.folder.write_samples(name, pairs, hypotheses)
            return {}
        self.folder.write_hypotheses(name, pairs, hypotheses)
        both = texts, scoring.references
        return self._text_metrics(*both) | of_parts(self._text_metrics, self.data.parts, *both)

    def _continue(self, decoder: Decoder, variables: VariableDict, name: str, progress: ProgressCallback) -> None:
        """Writes the texts that continue the prompts under `name`."""
        prompts, tokenizer = self.config.train.sample_prompts, self.tokenizers.target
        requests = requests_in_order(encode_prompt(tokenizer, prompt, decoder.config.bos_id) for prompt in prompts)
        answers = self._answers(
            decoder,
            variables,
            requests,
            lambda i, tokens: decode_after(tokenizer, requests[i].source, tokens),
            progress,
        )
        self.folder.write_samples(name, [Pair(prompt, "") for prompt in prompts], answers)

    def _answers(
        self,
        decoder: Decoder,
        variables: VariableDict,
        requests: Sequence[Request],
        text_of: Callable[[int, Sequence[int]], str],
        progress: ProgressCallback,
    ) -> list[str]:
        """Returns the text of the best answer to each request, by `text_of` its number and the answer's tokens; in all processes.

        Whole batches are dealt, each as a single process has it: so its answers have the same bits. In a round each process
        answers a call, and `progress` is called.
        """
        places = [i for i, one in enumerate(requests) if one.source and not decoder.is_empty(one.source)]
        batches = decoder.batches([len(requests[i].source) for i in places])
        prepared = (Prepared(batch, np.empty((batch.rows, batch.length))) for batch in batches)
        calls = list[list[int]]()
        for call in decoder.placement.calls(prepared):
            of_call = itertools.chain.from_iterable(batch.members for batch, *_ in call)
            calls.append([places[i] for i in of_call])
        weights = decoder.lay_out(variables)
        texts = dict[int, str]()
        done = 0
        for members, number in self.processes.rounds(calls):
            answers = decoder.generate(weights, [requests[i] for i in members])
            for i, (best, *_) in zip(members, answers, strict=True):
                texts[i] = text_of(i, best.tokens)
            done += number
            progress("decoding", done, len(places))
        texts = self.processes.merge(texts)
        return [texts.get(i, "") for i in range(len(requests))]

    @property
    def _text_metric_names(self) -> tuple[str, ...]:
        return (*self.config.train.text_metrics, *self.config.objective.text_metric_names)

    def _text_metrics(self, texts: Sequence[str], references: Sequence[str | None]) -> dict[str, float]:
        """Returns the metrics of answers with a reference: those that the settings name, and the objective's own."""
        both = with_references(texts, references)
        if not both[0]:
            return {}
        scores = text_scores(self.config.train.text_metrics, *both, self.metrics)
        of_objective = self.config.objective.text_metrics(*both)
        return {name: score.value for name, score in scores.items()} | of_objective
