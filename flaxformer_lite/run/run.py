"""A trained run, for use: `run = flaxformer_lite.load("runs/quickstart"); run.translate(["20 November 2026"])`."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.base.console import note, warn
from flaxformer_lite.base.hardware import check_platforms
from flaxformer_lite.base.programs import keep_programs_of_python
from flaxformer_lite.base.sealed_files import text_digest
from flaxformer_lite.config import Config, to_json
from flaxformer_lite.config.outside import IMPORTED
from flaxformer_lite.core.base.bounds import WEIGHTS_DTYPES
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model.transformer import Transformer, parameter_shapes
from flaxformer_lite.core.parallel import CompilerOptions, MeshConfig
from flaxformer_lite.core.parallel.mesh import check_rows, make_mesh, row_groups
from flaxformer_lite.core.parallel.sharding import with_padded_vocabulary, without_padding
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.predictions.forward import ForwardArguments, ModelOutput, forward
from flaxformer_lite.core.runners import MeshRunner
from flaxformer_lite.core.search.answers import Hypothesis, ScoredText, check_translates
from flaxformer_lite.core.search.devices import TooLarge, Workload, device_groups
from flaxformer_lite.core.text import Tokenizer, Tokenizers
from flaxformer_lite.core.text.special_ids import cut_warning
from flaxformer_lite.engine.exports import RunWeights, state_of
from flaxformer_lite.engine.texts import WarnCallback, check_list, in_own_direction, required_tokenizers
from flaxformer_lite.files.data.held_out import Split
from flaxformer_lite.files.data.reading import EvalData, reader_of
from flaxformer_lite.files.data.refused import Origin
from flaxformer_lite.run.attention import AttentionWeights, attention_ids, layer_weights, own_targets
from flaxformer_lite.run.description import BestScore, best_score, describe_run
from flaxformer_lite.run.recording import RecordedRow, Recording, open_recording
from flaxformer_lite.run.scoring import TEST_SCORES, EngineRunner, score, scored_data
from flaxformer_lite.run.searches import Generator, Kept, Read, RunSearcher, Translator, form_of
from flaxformer_lite.tasks.answer.answers import Answer, FoundAnswer, Question
from flaxformer_lite.tasks.classify.answers import Classify, ClassPrediction
from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.tasks.embed.answers import Compare, Embed, matrix
from flaxformer_lite.tasks.fill_mask.answers import FillMask, TokenPrediction
from flaxformer_lite.tasks.jax_model import JaxModel
from flaxformer_lite.tasks.label.answers import Label, LabelledWords
from flaxformer_lite.tasks.rank.answers import Query, Rank, RankedText, Relevance, sign
from flaxformer_lite.tasks.rate.answers import rated, rates_with
from flaxformer_lite.tasks.task import Reporting, TextModel
from flaxformer_lite.training import mean_metrics, train_task
from flaxformer_lite.training.evaluation import BatchCounter
from flaxformer_lite.workdir import RunFolder, open_checkpoints, open_run, parameter_digest, restore_weights
from flaxformer_lite.workdir.folder import finite


@dataclass(frozen=True, repr=False)
class Run:
    """A model with its parameters, tokenizers and config, ready to use; `load` returns one.

    Methods that take `**options` override settings of `DecodeConfig` by name, for example `beam_size=4`. A `Run` keeps the
    programs that they compile: use one for many calls. `progress`, `warn` and `first_line` are described at `Reporting`.
    """

    folder: RunFolder
    config: Config
    params: PyTree
    tokenizers: Tokenizers | None
    """None if the weights were imported without a tokenizer."""
    step: int
    """The step of the checkpoint that holds the parameters; of an average, the newest one's."""
    placement: Placement = ONE_DEVICE
    """The devices that hold the parameters, their vocabulary padded where `tensor` devices do not divide it."""
    kept: Kept = dataclasses.field(default_factory=Kept)
    """Things that searches keep from call to call."""
    read: Read | None = None
    """The checkpoint that `load` read."""
    others: tuple["Run", ...] = ()
    """Further members of an ensemble (`load_ensemble`): translations are searched with the mean of all runs' predictions."""
    stopped: bool = False
    """Whether Ctrl-C came in the training that returned this run."""

    def __repr__(self) -> str:
        return describe_run(self.folder, self.config, parameter_shapes(self.config.model), self.step)

    @cached_property
    def best_score(self) -> BestScore | None:
        """The best row of metrics.jsonl by `train.best_metric`; None without an evaluation."""
        return best_score(self.folder, self.config)

    @property
    def test_scores(self) -> dict[str, Any] | None:
        """The scores on the test that `fit` or `pair` made of this run at this step; None without them."""
        file = self.path / TEST_SCORES
        if not file.is_file():
            return None
        scores: dict[str, Any] = json.loads(file.read_bytes())
        return scores if scores.get("step") == self.step else None

    @cached_property
    def origin(self) -> list[tuple[int, str, str]]:
        """The step of each member, a digest of its config, tokenizers and chat template, and one of its parameters."""
        origins = []
        for run in self.members:
            settings = to_json(run.config), run.vocabulary, run.translator.form.template_text
            params = without_padding(run.params, parameter_shapes(run.config.model))
            origins.append((run.step, text_digest(repr(settings)), parameter_digest(params)))
        return origins

    @property
    def members(self) -> tuple["Run", ...]:
        """The runs whose predictions a search reads: this one and `others`."""
        return (self, *self.others)

    @property
    def vocabulary(self) -> tuple[object, ...]:
        """The tokenizers, sizes of the vocabularies, and ids that start and end: the members of an ensemble share them."""
        tokenizers = self.tokenizers
        files = () if tokenizers is None else (tokenizers.source.to_bytes(), tokenizers.target.to_bytes())
        decode = self.config.decode
        return *files, self.config.model.vocab_sizes, decode.pad_id, decode.bos_id, decode.eos_ids

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder.path

    @property
    def required_tokenizers(self) -> Tokenizers:
        """The tokenizers. Raises: ValueError if the run has none."""
        return required_tokenizers(self.tokenizers, self.folder.called)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts that the model reads."""
        return self.required_tokenizers.source

    @cached_property
    def text_model(self) -> JaxModel:
        """The part of the run that reads texts in one pass."""
        return JaxModel(self.folder.called, self.config, self.tokenizers, self.params, self.placement)

    @property
    def model(self) -> Transformer:
        """The model with kernels that run on this machine."""
        return self.text_model.model

    @cached_property
    def searcher(self) -> RunSearcher:
        """The searcher, which keeps what it compiles."""
        return RunSearcher([run.text_model for run in self.members], self.read, self.kept)

    # Translation -------------------------------------------------------------------------------------------------------

    @cached_property
    def translator(self) -> Translator:
        """The translator, with all that `translate` and `hypotheses` are made of."""
        longest = min(run.config.data.max_source_length for run in self.members)
        form = form_of(self.config, self.tokenizers, self.folder, longest)
        return Translator(self.searcher, form)

    def between(self, source: str | None = None, target: str | None = None) -> "Run":
        """Returns the run for texts of one direction, by the codes of `data.languages`. It shares what is compiled.

        None: the code of `data.languages.direction`, or a model that does not read the source's language.

        Example: `run.between("eng_Latn", "fra_Latn").translate(["A dog."])`.

        Raises: ValueError if the run has no languages, or not these; the message has the nearest.
        """
        form = self.translator.form.between(source, target)
        return dataclasses.replace(self, config=form.configured(self.config), tokenizers=form.tokenizers)

    def translate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """Returns the best translation of each text, in order; an empty one for an empty text. `options`: see `hypotheses`.

        Example: `run.translate(["20 November 2026"], beam_size=4)`.
        """
        return self.translator.translate(texts, **options)

    def hypotheses(self, texts: Sequence[str], **options: Any) -> list[list[ScoredText]]:
        """Returns the `decode.num_hypotheses` best translations of each text, best first; one empty one for an empty text.

        Truncates a text of more than `data.max_source_length` tokens, with a warning that has its line number. `options`:
        `progress`, `warn` and `first_line`; settings of `DecodeConfig` by name; `terms`, `placeholders` and `prefix` of
        `Translator.requests`; `engine` and `weights_dtype` of `Translator.searching`.

        `best_by`: a run that rates translations without a reference, or "chrf" or "bleu" for minimum Bayes risk. It orders
        the candidates: the answers of the beam, or, with `samples=N`, N translations drawn at `temperature`.

        Example: `run.hypotheses(["20 November 2026"], beam_size=4, num_hypotheses=2)[0][1].score`, or
        `run.translate(["20 November 2026"], best_by="chrf", samples=16)`.

        Raises: ValueError if the model does not translate, the run has no tokenizer, or a setting is out of range.
        """
        return self.translator.hypotheses(texts, **options)

    def hypotheses_of_ids(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[Hypothesis]]:
        """Returns the best translations of token ids as token ids. No EOS is added; `decode.pad_id` is padding.

        Example: `run.hypotheses_of_ids([[17, 5, 9, 3]])[0][0].tokens`.

        Raises: ValueError if an id is outside the vocabulary, or a source has more ids than `data.max_source_length`.
        """
        return self.translator.hypotheses_of_ids(sources, **options)

    # Generation --------------------------------------------------------------------------------------------------------

    @cached_property
    def generator(self) -> Generator:
        """The generator, which continues prompts, with all that `generate` and `chat` are made of."""
        return Generator(self.searcher, self.tokenizers, self.config.decode, self.folder.called)

    def generate(self, prompts: Sequence[str], **options: Any) -> list[str]:
        """Returns the text that continues each prompt, in order; of several samples the first. `options`: see `completions`.

        Example: `run.generate(["Once upon"], temperature=0.8, max_new_tokens=50)`.
        """
        return [texts[0].text for texts in self.completions(prompts, **options)]

    def completions(self, prompts: Sequence[str], **options: Any) -> list[list[ScoredText]]:
        """Returns the `decode.num_hypotheses` texts that continue each prompt, with scores.

        `options`: settings of `DecodeConfig` and of `Sampling` by name, `engine` and `weights_dtype` of `Translator.searching`,
        `progress` and `warn`. A text ends before the first of the strings `stop` in it. Samples depend on `seed` and the index of
        the prompt, counted from `first_index`.

        Example: `run.completions(["Once upon"], temperature=0.8, num_hypotheses=3)[0][2].text`.

        Raises: ValueError if the model does not continue prompts, the run has no tokenizer, or a prompt is longer than the model's
        positions.
        """
        return self.generator.completions(prompts, **options)

    def completions_of_ids(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[Hypothesis]]:
        """Returns the completions of token ids as token ids. No BOS is added.

        Example: `run.completions_of_ids([[2, 40]], max_new_tokens=3)[0][0].tokens`.

        Raises: ValueError as `completions` does, and if an id is outside the vocabulary.
        """
        return self.generator.completions_of_ids(prompts, **options)

    def stream(self, prompt: str, **options: Any) -> Iterator[str]:
        """Returns an iterator over parts of the text that `generate` returns for a single prompt, while it is generated.

        Example: `for part in run.stream("Once upon"): print(part, end="")`.

        Raises: ValueError as `completions` does, and with a `beam_size` above 1.
        """
        return self.generator.stream(prompt, **options)

    def chat(self, messages: Sequence[Mapping[str, object]], **options: Any) -> Iterator[str]:
        """Returns an iterator over parts of the assistant's answer to a conversation, by the run's chat template.

        Example: `"".join(run.chat([{"role": "user", "content": "20 November 2026"}]))`.

        Raises: ValueError as `stream` does, and if the run has no chat template, or one that refuses the messages.
        """
        return self.generator.chat(messages, **options)

    # One pass over a text -----------------------------------------------------------------------------------------------

    def answering(self, options: Reporting, by_engine: bool = True) -> TextModel:
        """Returns the model that answers under these options: of JAX, or of CTranslate2 (`engine`), if it does the task."""
        return self.searcher.text_model(by_engine, options.get("engine", "jax"), options.get("weights_dtype"))

    def embed(
        self, texts: Sequence[str], *, prompt: str | None = None, width: int | None = None, **report: Unpack[Reporting]
    ) -> Float[np.ndarray, "N D"]:
        """Returns the vector of each text, by `model.sentence_embedding`.

        prompt: the name of the one of `objective.prompts` that stands before each text; "": none; None: the run's own. That is
        the one of its side (`objective.query_prompt`, `document_prompt`) for a text of a pair, of a ranking or of a search, and
        else `objective.default_prompt`.
        width: the number of values of a vector, its first ones scaled to length 1 (`objective.widths`); None: the whole vector.

        Truncates texts of more than `data.max_source_length` tokens, with a warning each.

        Example: `run.embed(["a cat", "a dog"]).shape`.

        Raises: ValueError if the model makes no vectors, or narrower ones, or the prompt is unknown.
        """
        model = self.answering(report)
        return matrix(Embed(prompt, width).answers(model, texts, **report), width or model.vector_width)

    def classify(self, texts: Sequence[str | tuple[str, str]], **report: Unpack[Reporting]) -> list[ClassPrediction]:
        """Returns the class of each text or pair of texts with its probability, or all its labels; for a regression, the number.

        Classes are named as in `objective.classes`, else "0", "1" and so on. Truncates long texts as `embed` does.

        Example: `run.classify([("It rains.", "The sun shines.")])[0].label`.

        Raises: ValueError if the model has no classes or ranks, or was trained on single texts and is given a pair, or
        on pairs and is given a single text.
        """
        return Classify().answers(self.answering(report), texts, **report)

    @property
    def sign(self) -> int:
        """1, or -1 where the lowest number is the best (`objective.best`)."""
        return sign(self.text_model)

    def relevance(self, pairs: Sequence[tuple[str, str]], **report: Unpack[Reporting]) -> Float[np.ndarray, "N"]:
        """Returns how well the second text of each pair answers the first: a cross-encoder's number, else the cosine of vectors.

        A low number is a good one where `objective.best` is "lowest".

        Example: `run.relevance([("capital of France", "Paris is its capital.")])`.

        Raises: ValueError if the model makes neither.
        """
        numbers = Relevance().answers(self.answering(report), pairs, **report)
        return np.array(numbers, np.float32)

    def similarity(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompt: str | None = None,
        width: int | None = None,
        **report: Unpack[Reporting],
    ) -> Float[np.ndarray, "N"]:
        """Returns the cosine of the vectors of each pair, of a query and a document. The arguments are those of `embed`.

        Example: `run.similarity([("capital of France", "Paris is its capital.")])`.
        """
        task = Compare(Embed(prompt, width))
        cosines = task.answers(self.answering(report), pairs, **report)
        return np.array(cosines, np.float32)

    @property
    def rates_with(self) -> tuple[bool, ...]:
        """Whether `rate` reads a reference: (True,) needs one, (False,) reads none, (True, False) reads one if it is given.

        Raises: ValueError if the run rates no translations.
        """
        return rates_with(self.text_model)

    def rate(
        self,
        sources: Sequence[str],
        translations: Sequence[str],
        references: Sequence[str] | None = None,
        **report: Unpack[Reporting],
    ) -> Float[np.ndarray, "N"]:
        """Returns the number of each translation; whether the highest or the lowest is the best is `objective.best`.

        Truncates long texts as `embed` does.

        Example: `run.rate(["ein Hund"], ["a dog"], ["a dog"])`.

        Raises: ValueError if the run rates no translations, or reads no reference, or needs one.
        """
        return rated(self.answering(report), sources, translations, references, **report)

    def rank(self, query: str, candidates: Sequence[str], **report: Unpack[Reporting]) -> list[RankedText]:
        """Returns the candidates, each with its place in the list and its score by `relevance`, best first.

        Example: `run.rank("capital of France", ["It rains.", "Paris is its capital."])[0].index`.
        """
        return self.rankings([(query, candidates)], **report)[0]

    def rankings(
        self, asked: Sequence[tuple[str, Sequence[str]]], **report: Unpack[Reporting]
    ) -> list[list[RankedText]]:
        """Returns what `rank` does for each query with its candidates."""
        queries = list(map(Query._make, asked))
        return Rank().answers(self.answering(report), queries, **report)

    def label(self, texts: Sequence[str | Sequence[str]], **report: Unpack[Reporting]) -> list[LabelledWords]:
        """Returns the labels of the words of each text, a string or a list of words, and the entities that they spell: see `Label`.

        Example: `run.label(["Marie Curie was born in Warsaw."])[0].spans`.

        Raises: ValueError if the run was not trained to label words.
        """
        return Label().answers(self.answering(report), texts, **report)

    def answer(self, questions: Sequence[tuple[str, str]], **report: Unpack[Reporting]) -> list[FoundAnswer]:
        """Returns the part of the second text of each pair that answers the first, a question: see `Answer`.

        Example: `run.answer([("Where was she born?", "Marie Curie was born in Warsaw.")])[0].answer`.

        Raises: ValueError if the run was not trained to find answers.
        """
        asked = list(map(Question._make, questions))
        return Answer().answers(self.answering(report), asked, **report)

    def fill_mask(
        self, texts: Sequence[str], top: int = 5, **report: Unpack[Reporting]
    ) -> list[list[list[TokenPrediction]]]:
        """Returns the `top` most probable tokens at each [MASK] of each text, most probable first.

        Warns of texts without a mask. Truncates long texts as `embed` does.

        Example: `run.fill_mask(["The [MASK] is red."])[0][0][0].token`.

        Raises: ValueError if the model is no masked language model.
        """
        return FillMask(top).answers(self.answering(report, FillMask.by_engine), texts, **report)

    # Attention ----------------------------------------------------------------------------------------------------------

    def attention(self, source: str, target: str | None = None) -> AttentionWeights:
        """Returns every layer's attention weights while the model reads `source` and writes `target`, by default `own_targets`.

        An encoder-only model has no target; [MASK] is a masked token in its source. A decoder-only model reads a prompt and its
        continuation. Truncates texts longer than the config allows, with a warning each.

        Example: `run.attention("20 November 2026", "2026-11-20").cross.shape`, which is [L, N, T, S].

        Raises: ValueError if there is a target, but the model is encoder-only.
        """
        if target is None:
            (target,) = own_targets(self, [source])
        elif self.config.model.num_decoder_layers == 0:
            raise ValueError("the model has no decoder (model.num_decoder_layers is 0): leave out the target")
        return layer_weights(self, attention_ids(self, source, target, cut_warning(warn)))

    # What it read -------------------------------------------------------------------------------------------------------

    @cached_property
    def recording(self) -> Recording:
        """The steps of the run with their data, which is read once. Raises: ValueError if the data has changed since."""
        return open_recording(self.folder)

    def rows(self, step: int) -> list[RecordedRow]:
        """Returns the rows of a step as the model saw them: their records, files and lines, arrays and texts.

        Example: `run.rows(1000)[0].places[0].line`.

        Raises: ValueError if there is no such step, the run was not trained here, or its data has changed since.
        """
        return self.recording.rows(step)

    # Metrics, forward passes --------------------------------------------------------------------------------------------

    def metrics(
        self,
        pairs: Sequence[Pair],
        *,
        parts: Mapping[str, slice] = {},
        origin: Origin | None = None,
        reader: TextModel | None = None,
        progress: ProgressCallback = no_progress,
        warn: WarnCallback = warn,
    ) -> dict[str, float]:
        """Returns the objective's metrics on pairs or documents: loss in nats per token without smoothing, perplexity, and so on.

        `parts`: names of parts that are all pairs together; each then has metrics of its own, such as `de/loss`. `origin`: the
        source of the pairs, for messages. `reader`: the model that reads whole texts (`answering`); None: that of JAX.

        Example: `run.metrics([Pair("20 November 2026", "2026-11-20")])["loss"]`.

        Raises: ValueError if `data.rows` or `data.rows_multiple` is not divisible by the number of devices.
        """
        config = dataclasses.replace(self.config, model=self.config.model.for_use)
        mesh = make_mesh(MeshConfig(tensor=self.placement.tensor), jax.local_devices())
        check_rows(*config.data.rows_divisor, mesh)
        data = EvalData(
            pairs,
            parts,
            config.objective,
            config.data,
            self.required_tokenizers,
            config.decode.bos_id,
            warn,
            origin,
        )
        # The parts of a batch that training had, as far as these devices divide them; options of this machine's compiler.
        parts_of_batch = math.gcd(config.train.num_micro_batches, config.data.rows_divisor[1] // row_groups(mesh))
        task = train_task(config)
        task = dataclasses.replace(
            task, model=self.model, num_micro_batches=parts_of_batch, compiler_options=CompilerOptions()
        )
        if reader is None or reader is self.text_model:
            runner: BatchCounter = MeshRunner(task, mesh)
        else:
            runner = EngineRunner(reader, self.config)
        return mean_metrics(runner, self.config.objective, self.params, data.datasets, parts, progress)

    def evaluate(
        self,
        split: Split | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
        bleu_tokenizer: str | None = None,
        **decode: object,
    ) -> dict[str, Any]:
        """Returns the scores that the command `evaluate` writes: the objective's metrics, for translations also BLEU and chrF.

        `split`: eval or test; None: data.test if the config has one. `source`, `target`: files of sentences in place of a split.
        `bleu_tokenizer`: sacreBLEU's, in place of the config's. `decode`: options of `hypotheses`, such as `best_by`; `engine` and
        `weights_dtype` for all runs. The report names the engine.

        Example: `run.evaluate("test", beam_size=5)["bleu"]`.

        Raises: ValueError if there is no such data, BLEU cannot be computed, or a setting is for translations, which the run
            does not make.
        """
        data = scored_data(self.config, split, source, target, bleu_tokenizer)
        asks = [] if bleu_tokenizer is None else ["bleu_tokenizer"]
        scores, _ = score(self, data, decode, asks=asks)
        return finite(scores)

    def forward(self, **arguments: Unpack[ForwardArguments]) -> ModelOutput:
        """Returns the model's outputs for arrays or nested lists, under the argument names of Hugging Face's library.

        Example: `run.forward(input_ids=[[2, 17, 3]]).logits.shape`.

        Raises: ValueError if an argument is not one of this model's, is missing, or of the wrong shape or range.
        """
        return forward(self.model, {"params": self.params}, self.config.decode, **arguments)


def load(
    path: str | Path,
    *,
    weights: str | None = None,
    step: int | None = None,
    weights_dtype: str = "float32",
    mesh: MeshConfig | None = None,
) -> Run:
    """Returns the run in a folder, ready to use on all devices of this process.

    `weights`: last, best, ema or average:N; None: the config's `weights`, whose average:N takes fewer checkpoints if there are
    fewer. `step`: the checkpoint of that step, with `weights` last or ema. `weights_dtype`: float32, or bfloat16 for products in
    bfloat16 with sums in the model's type. `mesh`: the devices that divide the model, by `tensor` and `fsdp`; the others answer
    rows of their own. None: the fewest that have the memory.

    Example: `load("runs/quickstart", weights="average:5")`.

    Raises: ValueError if the folder holds no run, or not those weights, `weights_dtype` is another type, or the devices do not
        divide or hold the model.
    """
    if weights_dtype not in WEIGHTS_DTYPES:
        raise ValueError(f"weights_dtype is {weights_dtype!r}: it must be {' or '.join(WEIGHTS_DTYPES)}")
    check_platforms()
    keep_programs_of_python()
    folder = open_run(path)
    config = folder.config()
    longest = config.data.max_source_length if config.model.num_encoder_layers else config.data.longest.target
    local = make_mesh(MeshConfig(), jax.local_devices())
    workload = Workload((config.model.for_use,), config.decode, longest, weights_dtype)
    try:
        placement = device_groups(workload, mesh, list(local.devices.flat))
    except TooLarge as error:
        remedy = "weights_dtype bfloat16, " if weights_dtype == "float32" else ""
        raise ValueError(f"{error}: use {remedy}a lower decode.batch_tokens, or more devices") from None
    if placement.tensor > 1 and (mesh is None or mesh.tensor != placement.tensor):
        note(placement.in_words())
    local = placement.mesh or local
    wanted = RunWeights(folder.name, weights, step, weights_dtype, tuple(IMPORTED))
    state = state_of(wanted.run)
    with open_checkpoints(config, folder, read_only=True) as checkpoints:
        step, params = restore_weights(checkpoints, config, weights, step, local, weights_dtype)
    params = with_padded_vocabulary(params, local)
    data = config.data
    tokenizers = None
    if data.tokenizer is not None:
        loaded = folder.load_tokenizers(data, config.model.vocab_sizes)
        is_whole = data.train is None
        tokenizers = reader_of(config.objective, loaded, folder.path, data.longest, data.translation, whole=is_whole)
    read = Read(wanted, state, params)
    return in_own_direction(Run(folder, config, params, tokenizers, step, placement, read=read))


def load_ensemble(
    paths: Sequence[str | Path],
    *,
    weights: str | None = None,
    weights_dtype: str = "float32",
    mesh: MeshConfig | None = None,
) -> Run:
    """Returns the first run, which translates with the mean of the predicted probabilities of all runs.

    The models may differ in shape, but not in their tokenizers. Settings of decoding are the first run's. Sources are as long as
    all runs read. Everything but translation, such as `metrics`, is that of the first run. The other arguments are those of `load`;
    the devices are divided as the first run needs by itself.

    Example: `load_ensemble(["runs/seed_0", "runs/seed_1"]).translate(["a man"])`.

    Raises: ValueError as `load` does, or if the runs do not fit together.
    """
    check_list("paths", paths)
    path, *further = paths
    first = load(path, weights=weights, weights_dtype=weights_dtype, mesh=mesh)
    shared = MeshConfig(tensor=first.placement.tensor)
    others = [load(other, weights=weights, weights_dtype=weights_dtype, mesh=shared) for other in further]
    for other in others:
        check_translates(other.config.model, partial(use_command, other.config))
        if other.vocabulary != first.vocabulary:
            raise ValueError(
                f"{other.folder.name} has other tokenizers or another vocabulary than {first.folder.name}: train the runs of an "
                "ensemble with one tokenizer, by data.tokenizer=FromRun(path=…)"
            )
    return dataclasses.replace(first, others=tuple(others)) if others else first
