"""The config of one experiment: the settings of all rooms in one tree, checked together before anything runs."""

import typing
from dataclasses import dataclass, replace
from typing import Annotated

import jax

from flaxformer_lite.config.train import TextMetric, TrainConfig
from flaxformer_lite.core.base.annotations import Answers, Resume, SavedAs
from flaxformer_lite.core.base.bounds import Checked, PositiveInt
from flaxformer_lite.core.data.batch_plan import Length
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.lora import ADAPTERS
from flaxformer_lite.core.objectives import BaseObjective, Objective, Seq2Seq
from flaxformer_lite.core.optim import OptimizerConfig
from flaxformer_lite.core.search.settings import DecodeConfig, check_vocabulary
from flaxformer_lite.files.data import DataConfig
from flaxformer_lite.files.data.held_out import SPLITS
from flaxformer_lite.files.data.source import DataSource
from flaxformer_lite.files.tokenizers import FromRun
from flaxformer_lite.metrics.translations import MetricConfig


@dataclass(frozen=True, kw_only=True)
class Resolved(Checked, at="resolved"):
    """Facts of the training data, from which settings in epochs and "auto" get their values. They are never typed."""

    batches_per_epoch: PositiveInt
    """The batches in which an epoch reads the data."""
    bucket_lengths: tuple[Length, ...]
    """The lengths to which its pairs are padded; a run that goes on keeps them."""


@dataclass(frozen=True, kw_only=True)
class Config(Checked, at=""):
    """One experiment: everything that decides its numbers."""

    data: DataConfig
    train: Annotated[TrainConfig, Answers.SAME] = TrainConfig()
    optimizer: Annotated[OptimizerConfig, Answers.SAME] = OptimizerConfig()
    model: ModelConfig
    objective: Annotated[BaseObjective, SavedAs(Objective)] = Seq2Seq()
    decode: Annotated[DecodeConfig, Answers.CHOSEN] = DecodeConfig()
    metrics: MetricConfig = MetricConfig()
    weights: Annotated[str, Resume.FREE] = "last"
    """Parameters that the commands use: last, best, ema, or average:N, the mean of the newest N checkpoints, or of all
    if there are fewer."""
    resolved: Annotated[Resolved | None, Resume.FREE, Answers.SAME] = None
    """Facts of the training data, which a training writes beside the settings; None: not known yet."""

    @property
    def concrete(self) -> "Config":
        """The same config with steps in the place of epochs, and lengths in that of "auto"; as it is while they are not known."""
        if self.resolved is None:
            return self

        batches = self.resolved.batches_per_epoch

        def in_steps(epochs: float) -> int:
            return max(1, round(epochs * batches))

        train, data = self.train, self.data
        steps, every = train.steps, train.eval_every
        if train.epochs is not None:
            steps = in_steps(train.epochs)
        if isinstance(every, float):
            every = in_steps(every)
        train = replace(train, steps=steps, epochs=None, eval_every=every)
        if data.bucket_lengths == "auto":
            data = replace(data, bucket_lengths=self.resolved.bucket_lengths)
        return replace(self, data=data, train=train, resolved=None)

    def continuing(self, before: "Config") -> "Config":
        """Returns the same config with the facts of the data that a run was trained on; `before`: that of its checkpoints."""
        config = replace(self, resolved=before.resolved)
        # A run of an older release has no facts: its lengths are those that its config names.
        if before.resolved is None and self.data.bucket_lengths == "auto":
            config = replace(config, data=replace(self.data, bucket_lengths=before.data.bucket_lengths))
        return config

    @property
    def tokenizer_sizes(self) -> tuple[int, int]:
        """The number of ids that the source's and the target's tokenizer may have: all but those reserved by the objective.

        A tokenizer from another run includes such ids.
        """

        def num_ids(size: int, tokenizer: object) -> int:
            return size if isinstance(tokenizer, FromRun) else self.objective.num_tokenizer_ids(size)

        source, target = self.model.vocab_sizes
        return num_ids(source, self.data.tokenizer), num_ids(target, self.data.target_tokenizer or self.data.tokenizer)

    @property
    def trainable(self) -> tuple[str, ...]:
        """Patterns of the parameters that train: those of `train.trainable`; with `model.lora` the adapters in place of all."""
        named = self.train.trainable
        if self.model.lora is None:
            return named
        others = [pattern for pattern in named if pattern != "*"]
        return (*ADAPTERS, *others)

    def __post_init__(self) -> None:
        """Checks settings of several groups together. Raises: ValueError with the settings, their values and the remedy."""
        super().__post_init__()
        self._check_model()
        self._check_freezing()
        self._check_sources()
        self._check_batches()
        self._check_sampling()
        self._check_evaluation()
        check_weights(self.weights, self)
        self.optimizer.build(
            total_steps=self.train.most_steps, d_model=self.model.d_model, num_layers=self.model.num_layers
        )

    def _check_model(self) -> None:
        model, data = self.model, self.data
        # Two tokenizers from another run may share one numbering of pieces, as Marian's do.
        if model.share_source_target and not isinstance(data.target_tokenizer, FromRun | None):
            raise ValueError(
                "data.target_tokenizer is set, but model.share_source_target shares one embedding table for both vocabularies: "
                "set model.share_source_target to False, or data.target_tokenizer to None"
            )
        if model.target_vocab_size is not None and data.tokenizer is not None and data.target_tokenizer is None:
            raise ValueError(
                f"model.target_vocab_size is {model.target_vocab_size}, but data.target_tokenizer is None: set it, or set "
                "model.target_vocab_size to None"
            )
        if data.train is not None:  # imported weights are used without an objective
            self.objective.check_model(model)
        if model.has_two_stacks:
            self.decode.start_id  # noqa: B018  # raises without a start
        if model.num_decoder_layers and model.head is not None:
            check_vocabulary(self.decode, model.output_size)
        row = self.objective.longest_row(data.longest)
        if model.positions.max_positions is not None and model.positions.max_positions < max(row):
            raise ValueError(
                f"model.positions.max_positions {model.positions.max_positions} is less than data.max_source_length "
                f"{data.max_source_length} or data.max_target_length {data.max_target_length}: raise it, or lower them"
            )
        if model.dtype == "float64" and jax.dtypes.canonicalize_dtype("float64") != "float64":
            raise ValueError(
                "model.dtype is 'float64', but JAX computes in 32 bits here: set the environment variable JAX_ENABLE_X64=1, "
                "or choose 'float32'"
            )

    def _check_freezing(self) -> None:
        if self.train.frozen_dtype != "float32" and self.trainable == ("*",):
            raise ValueError(
                f"train.frozen_dtype is {self.train.frozen_dtype!r}, but train.trainable is ('*',), so no parameter is "
                "frozen: name those that train, or set train.frozen_dtype to 'float32'"
            )

    def _check_sources(self) -> None:
        if self.data.languages is not None and not self.objective.translates and self.data.train is not None:
            raise ValueError(
                f"data.languages is set, but objective.kind '{self.objective.kind}' translates nothing: set it to None"
            )
        if self.data.translation is not None and self.model.num_encoder_layers:
            raise ValueError(
                f"data.translation is set, but model.num_encoder_layers is {self.model.num_encoder_layers}: it is for decoders "
                "with a chat template; set it to None"
            )
        for split in SPLITS:
            source = getattr(self.data, split)
            parts = [] if source is None else source.parts(f"data.{split}")
            for setting, member in parts:
                self._check_part(setting, member)

    def _check_part(self, setting: str, source: DataSource) -> None:
        """Checks a source that is no mixture. setting: its path."""
        known, reads = self.data.languages, self.objective.reads
        if source.record.reads not in ("texts", reads):  # any objective reads plain texts
            raise ValueError(
                f"{setting}.record has {source.record.reads}, but objective.kind '{self.objective.kind}' reads {reads}: "
                "change one of the two"
            )
        codes = getattr(source, "languages", ())
        if not codes:
            return
        if known is None or len(codes) != 2:
            raise ValueError(
                f"{setting}.languages is {codes}: it must be two codes of data.languages, which must be set"
            )
        try:
            known.checked(*codes)
        except ValueError as error:
            raise ValueError(f"{setting}.languages: {error}") from None

    def _check_batches(self) -> None:
        data, train = self.data, self.train
        setting, rows = data.rows_divisor
        if rows % train.num_micro_batches:
            raise ValueError(
                f"{setting} {rows} is not divisible by train.num_micro_batches {train.num_micro_batches}: "
                "change one, so that every batch divides evenly"
            )
        if not self.objective.rows_independent and train.runner == "pmap":
            raise ValueError(
                f"train.runner is 'pmap', but objective.kind '{self.objective.kind}' compares all rows of a batch with each other: "
                "set it to 'mesh'"
            )

    def _check_sampling(self) -> None:
        data, sampling = self.data, self.data.subword_sampling
        if sampling is None:
            return
        if not self.objective.translates:
            raise ValueError(
                f"data.subword_sampling is set, but objective.kind '{self.objective.kind}' composes its rows once, from fixed "
                "lengths: set it to None; it is for translation"
            )
        for name in ("tokenizer", "target_tokenizer"):
            tokenizer = getattr(data, name)
            model_type = getattr(tokenizer, "model_type", None)
            if tokenizer is not None and model_type != sampling.model_type and not isinstance(tokenizer, FromRun):
                raise ValueError(
                    f"data.subword_sampling.kind is '{sampling.kind}', but data.{name} is {tokenizer}: set it to "
                    f"SentencePiece(model_type='{sampling.model_type}'), or data.subword_sampling to None"
                )

    def _check_evaluation(self) -> None:
        data, train = self.data, self.train
        names = (*self.objective.metric_names, *self.objective.text_metric_names, *train.text_metrics)
        if train.best_metric not in names:
            hint = " (list it in train.text_metrics first)" if train.best_metric in typing.get_args(TextMetric) else ""
            raise ValueError(f"train.best_metric is {train.best_metric!r}{hint}: choose one of {', '.join(names)}")
        writes_texts = self.objective.translates or self.objective.reads == "conversations"
        if train.text_metrics and not writes_texts:
            raise ValueError(
                f"train.text_metrics is {train.text_metrics}, but objective.kind '{self.objective.kind}' translates nothing: set "
                "it to ()"
            )
        if train.sample_prompts and (not self.model.continues_texts or data.source("eval") is None):
            raise ValueError(
                f"train.sample_prompts is {train.sample_prompts}, but it is for evaluations of a language model: set it to (), or "
                "set data.eval (or data.held_out) and an objective of kind causal_lm"
            )
        without = {"text_metrics": (), "patience": None, "best_metric": "loss", "keep_best": min(train.keep_best, 1)}
        changes = [
            f"train.{name} (it is {getattr(train, name)!r}) to {value!r}"
            for name, value in without.items()
            if getattr(train, name) != value
        ]
        if data.source("eval") is None and changes:
            raise ValueError(
                f"data.eval is None, so nothing is evaluated: set it, or data.held_out, or {', '.join(changes)}"
            )


def check_weights(weights: str, config: Config) -> None:
    """Checks `weights`: last, best, ema or average:N.

    Raises: ValueError if it is not one of these, or a run with this config would not have them.
    """
    kind, _, count = weights.partition(":")
    if kind == "average" and count.isdecimal() and int(count) >= 1:
        if int(count) > config.train.keep_latest:
            raise ValueError(
                f"weights is {weights!r}, but train.keep_latest keeps only {config.train.keep_latest} checkpoints: "
                f"set train.keep_latest to at least {count}"
            )
    elif weights not in ("last", "best", "ema"):
        raise ValueError(f"weights is {weights!r}: choose last, best, ema or average:N, for example average:5")
    if weights == "ema" and config.optimizer.ema_decay is None:
        raise ValueError("weights is 'ema', but optimizer.ema_decay is None: set it, for example to 0.999")
    if weights == "best" and config.data.source("eval") is None:
        raise ValueError(
            "weights is 'best', but data.eval is None, so no checkpoint is the best: set weights to 'last'"
        )
    if weights == "best" and config.train.keep_best == 0:
        raise ValueError(
            "weights is 'best', but train.keep_best is 0, so the best checkpoint is not kept: set train.keep_best to 1 or more"
        )
