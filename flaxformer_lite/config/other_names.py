"""The names of settings in other toolkits, and what a message offers in the place of any name that is no setting."""

import difflib
import re
from collections.abc import Callable, Sequence

from flaxformer_lite.config.renamed import renamed

HABITS = {
    "num_train_epochs num_epochs": "it is {train.epochs}",
    "max_steps": "it is {train.steps}",
    "per_device_train_batch_size train_batch_size batch_size": "it is {data.rows}, or {data.tokens_per_batch} for a batch "
    "of more short rows than long ones",
    "per_device_eval_batch_size eval_batch_size": "evaluations read batches of {data.rows} rows, as training does",
    "gradient_accumulation_steps": "it is {train.num_micro_batches}, which cuts a batch into parts: the batch is that of an update",
    "learning_rate lr": "it is {optimizer.schedule.peak_rate}",
    "lr_scheduler_type lr_scheduler lr_scheduler_kwargs": "it is {optimizer.schedule}, in the config file: Linear(…), Cosine(…), "
    "Constant(…) and others of flaxformer_lite.core.optim",
    "warmup_ratio warmup": "it is {optimizer.schedule.warmup_steps}; below 1 it is a share of all steps",
    "optim": "it is {optimizer.algorithm}: adamw, adafactor, lion, muon or sgd",
    "adam_beta1 beta1": "it is {optimizer.algorithm.b1}",
    "adam_beta2 beta2": "it is {optimizer.algorithm.b2}, by default 0.98, where others have 0.999",
    "adam_epsilon": "it is {optimizer.algorithm.eps}",
    "betas": "they are {optimizer.algorithm.b1} and {optimizer.algorithm.b2}",
    "max_grad_norm": "it is {optimizer.clip_norm}",
    "label_smoothing_factor": "it is {objective.label_smoothing}",
    "fp16": "there is no float16: {model.dtype} bfloat16 needs no scaled loss",
    "bf16": "it is {model.dtype} bfloat16",
    "tf32": "it is {model.matmul_dtype}",
    "gradient_checkpointing activation_checkpointing": "it is {model.remat}: none, dots or full",
    "output_dir overwrite_output_dir": "the run folder is --workdir RUN of the command, or the second argument of "
    "flaxformer_lite.train",
    "resume_from_checkpoint": "the same command continues a run from its newest checkpoint",
    "model_name_or_path model_name": "it is {train.init_from}, the folder of a run or of an imported model",
    "eval_strategy evaluation_strategy eval_steps": "it is {train.eval_every}: a number of steps, or of epochs such as 1.0",
    "save_strategy save_steps": "it is {train.checkpoint_every}; every evaluation is followed by a checkpoint too",
    "save_total_limit": "it is {train.keep_latest}, and {train.keep_best} for the best checkpoints",
    "logging_strategy logging_steps": "it is {train.log_every}",
    "logging_dir": "it is the run folder, with metrics.jsonl and train.log",
    "load_best_model_at_end": "it is {weights} best",
    "metric_for_best_model": "it is {train.best_metric}",
    "greater_is_better": "{train.best_metric} alone decides: a loss and a perplexity are best where lowest",
    "early_stopping_patience": "it is {train.patience}",
    "report_to": "it is {train.trackers}: tensorboard, wandb, trackio",
    "run_name": "it is the name of the run folder",
    "data_seed": "it is {train.seed}",
    "group_by_length train_sampling_strategy": "batches always have texts of similar length: {data.bucket_lengths}",
    "max_length max_seq_length model_max_length block_size": "it is {data.max_source_length}, and {data.max_target_length} of "
    "targets; of answers {decode.max_new_tokens}",
    "dataloader_num_workers num_workers": "a thread of its own reads batches ahead",
    "dataloader_drop_last drop_last": "an epoch has every row once: batches that are not full are padded",
    "dataloader_pin_memory dataloader_prefetch_factor dataloader_persistent_workers": "a thread of its own reads batches ahead",
    "remove_unused_columns label_names": "the record of a source names its fields: record=Classes(text=…, label=…)",
    "push_to_hub hub_model_id hub_private_repo": "`flaxformer-lite export hf RUN ORG/NAME --push` pushes a run",
    "torch_compile": "every step is compiled",
    "use_cpu no_cuda": "the variable JAX_PLATFORMS=cpu chooses the CPU",
    "deepspeed": "it is {train.mesh.fsdp}, the number of devices that divide parameters and optimizer",
}
"""Names in other toolkits, most of them those of transformers' TrainingArguments, and the end of the message on them, with the
settings in braces."""


def habit(setting: str) -> str:
    """Returns the text on a name of another toolkit: that of the longest known name at its end; "" without any."""
    name = re.sub(r"[-_]", "", setting.rpartition(".")[2]).lower()
    known = {other.replace("_", ""): text for others, text in HABITS.items() for other in others.split()}
    return known[max(ends, key=len)] if (ends := [other for other in known if name.endswith(other)]) else ""


def offer(setting: str, known: Sequence[str], show: Callable[[str], str] = str) -> str:
    """Returns the end of a message on a name that is no setting: what it is now, what it is here, or settings spelled like it.

    known: all settings. show: spells a setting for the reader. "" where nothing is like it.
    """
    same_name = [path for path in known if path.rpartition(".")[2] == setting.rpartition(".")[2]]
    return (
        renamed(setting)
        or ("" if same_name else re.sub(r"\{(.+?)\}", lambda match: show(match[1]), habit(setting)))
        or similar(setting, known, show)
    )


def similar(setting: str, known: Sequence[str], show: Callable[[str], str]) -> str:
    """Returns the settings of the same name in other groups, or spelled like it, outer first, as the end of a message."""
    name, known = setting.rpartition(".")[2], sorted(known, key=lambda path: path.count("."))
    near = [path for path in known if path.startswith(setting) or path.rpartition(".")[2] == name]
    if not 0 < len(near) <= 3:
        alike = difflib.get_close_matches(name, {path.rpartition(".")[2] for path in known}, 2, 0.7)
        near = [path for path in known if path.rpartition(".")[2] in alike][:3]
    return f"perhaps you meant {' or '.join(map(show, near))}" if near else ""
