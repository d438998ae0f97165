"""The names of settings in other toolkits, and what a message offers in the place of any name that is no setting."""

import difflib
import re
from collections.abc import Callable, Sequence

from flaxformer_lite.config.renamed import renamed

HABITS = {
    "train_file train_data train_dataset train_path dataset_name dataset_config_name data_path data_dir train_split "
    "train_split_name": "it is {data.train}, in the config file: TSV(path=…), HubDataset(path=…, name=…, split=…) and others of "
    "flaxformer_lite.files.data; `fit` has DATA, a file or NAME[:CONFIG][@SPLIT] of the hub",
    "validation_file validation_data valid_data valid_file eval_file eval_data eval_dataset dev_file": "it is {data.eval}, in the "
    "config file; `fit` has --eval FILE",
    "test_file test_data test_dataset": "it is {data.test}, in the config file; `fit` has --test FILE",
    "test_size train_size validation_size validation_split valid_split eval_split validation_split_percentage": "it is "
    "{data.held_out}, a share of the rows for data.eval and as many for data.test; `fit` has --eval FILE and --test FILE for "
    "data of their own",
    "max_train_samples max_eval_samples max_predict_samples max_samples": "no setting limits the rows: give data with fewer",
    "task_name problem_type": "it is {objective}, in the config file; `fit` has --task",
    "text_column text_column_name text_columns text_field dataset_text_field sentence1_key": "the record of a source names its "
    "fields: record=Classes(text=…, label=…); `fit` has --text NAME",
    "remove_unused_columns label_names label_column_name label_key column_mapping": "the record of a source names its fields: "
    "record=Classes(text=…, label=…); `fit` has --label NAME",
    "num_labels id2label label2id": "the classes are {objective.classes}, of words {objective.labels}; `fit` finds them in the "
    "data",
    "num_train_epochs num_epochs": "it is {train.epochs}",
    "steps_per_epoch": "an epoch has every row once: {train.epochs} is their number",
    "max_steps total_steps limit_train_batches": "it is {train.steps}",
    "mini_batch_size": "it is {train.num_micro_batches}: the parts of a batch",
    "per_device_train_batch_size train_batch_size batch_size": "it is {data.rows}, or {data.tokens_per_batch} for a batch of more "
    "short rows than long ones",
    "per_device_eval_batch_size eval_batch_size": "evaluations read batches of {data.rows} rows, as training does",
    "gradient_accumulation_steps gradient_accumulation accumulate_grad_batches": "it is {train.num_micro_batches}, which cuts a "
    "batch into parts: the batch is that of an update",
    "learning_rate lr": "it is {optimizer.schedule.peak_rate}",
    "lr_scheduler_type lr_scheduler lr_scheduler_kwargs scheduler": "it is {optimizer.schedule}, in the config file: Linear(…), "
    "Cosine(…), Constant(…) and others of flaxformer_lite.core.optim",
    "warmup_ratio warmup": "it is {optimizer.schedule.warmup_steps}; below 1 it is a share of all steps",
    "optim": "it is {optimizer.algorithm}: adamw, adafactor, lion, muon or sgd",
    "adam_beta1 beta1": "it is {optimizer.algorithm.b1}",
    "adam_beta2 beta2": "it is {optimizer.algorithm.b2}, by default 0.98, where others have 0.999",
    "adam_epsilon": "it is {optimizer.algorithm.eps}",
    "betas": "they are {optimizer.algorithm.b1} and {optimizer.algorithm.b2}",
    "max_grad_norm gradient_clip_val gradient_clipping clip_grad_norm clipnorm": "it is {optimizer.clip_norm}",
    "label_smoothing_factor": "it is {objective.label_smoothing}",
    "fp16": "float16 is not supported: {model.dtype} bfloat16 needs no scaled loss",
    "bf16": "it is {model.dtype} bfloat16",
    "mixed_precision precision half_precision use_amp torch_dtype": "it is {model.dtype}: float32 or bfloat16; parameters that "
    "train are float32",
    "load_in_4bit load_in_8bit quantization": "no model trains in 4 or 8 bits: {train.frozen_dtype} bfloat16 halves what is frozen",
    "lora_r lora_alpha lora_rank target_modules use_peft peft_config": "it is {model.lora}, in the config file: LoRA(rank=…, "
    "alpha=…, targets=…) of flaxformer_lite.core.model",
    "freeze freeze_layers freeze_backbone freeze_encoder unfreeze": "it is {train.trainable}: patterns of the parameters that "
    "train",
    "classifier_dropout hidden_dropout_prob hidden_dropout attention_probs_dropout_prob attention_dropout": "it is "
    "{model.dropout.residual_rate}, with {model.dropout.attention_rate} and {model.dropout.embedding_rate}",
    "pos_weight sample_weight": "it is {objective.class_weights}, a number for each class",
    "tf32": "it is {model.matmul_dtype}",
    "gradient_checkpointing activation_checkpointing": "it is {model.remat}: none, dots or full",
    "output_dir overwrite_output_dir project_name default_root_dir save_dir output_path": "the run folder is -o RUN of `fit`, "
    "--workdir RUN of `train`, or an argument of flaxformer_lite.fit and flaxformer_lite.train",
    "do_train do_eval do_predict do_test": "`fit` and `train` train and evaluate; `flaxformer-lite evaluate RUN` only scores",
    "resume_from_checkpoint resume ckpt_path": "the same command continues a run from its newest checkpoint",
    "model_name_or_path model_name base_model": "it is {train.init_from}, the folder of a run or of an imported model; `fit` has "
    "MODEL",
    "model_revision revision": "it is a part of the name: ORG/NAME@REVISION",
    "hub_token use_auth_token": "the variable HF_TOKEN has it",
    "cache_dir": "the variable HF_HUB_CACHE names the folder",
    "trust_remote_code": "no code of a model is run",
    "ignore_mismatched_sizes": "it is {train.init_fresh}: patterns of the parameters that start at random",
    "eval_strategy evaluation_strategy eval_steps val_check_interval check_val_every_n_epoch": "it is {train.eval_every}: a "
    "number of steps, or of epochs such as 1.0",
    "save_strategy save_steps save_interval enable_checkpointing": "it is {train.checkpoint_every}; every evaluation is followed "
    "by a checkpoint too",
    "save_total_limit": "it is {train.keep_latest}, and {train.keep_best} for the best checkpoints",
    "logging_strategy logging_steps log_every_n_steps log_interval": "it is {train.log_every}",
    "logging_dir": "it is the run folder, with metrics.jsonl and train.log",
    "load_best_model_at_end": "it is {weights} best",
    "metric_for_best_model monitor": "it is {train.best_metric}",
    "greater_is_better": "{train.best_metric} alone decides: a loss and a perplexity are best where lowest",
    "early_stopping_patience early_stopping_threshold early_stop": "it is {train.patience}",
    "compute_metrics": "the objective has its figures: {train.best_metric} chooses by one of them",
    "report_to use_wandb wandb logger": "it is {train.trackers}: tensorboard, wandb, trackio",
    "run_name": "it is the name of the run folder",
    "data_seed random_state random_seed full_determinism deterministic": "it is {train.seed}; a seed gives the same bits",
    "shuffle": "each epoch has an order of its own, by {train.seed}",
    "callbacks callback": "it is {train.hooks}",
    "group_by_length train_sampling_strategy": "batches always have texts of similar length: {data.bucket_lengths}",
    "max_length max_seq_length max_seq_len max_len seq_length model_max_length block_size truncation": "it is "
    "{data.max_source_length}, and {data.max_target_length} of targets; of answers {decode.max_new_tokens}",
    "dataloader_num_workers num_workers": "a thread of its own reads batches ahead",
    "pad_to_max_length padding": "texts are padded to the next of {data.bucket_lengths}",
    "doc_stride": "it is {objective.overlap}, the tokens that windows share",
    "version_2_with_negative": "it is {objective.unanswerable}",
    "null_score_diff_threshold": "it is {objective.threshold}",
    "label_all_tokens": "it is {objective.pieces} all",
    "loss_type": "it is {objective.criterion}",
    "use_ema ema": "it is {optimizer.ema_decay}",
    "matryoshka_dims": "it is {objective.widths}",
    "dataloader_drop_last drop_last": "an epoch has every row once: batches that are not full are padded",
    "dataloader_pin_memory dataloader_prefetch_factor dataloader_persistent_workers pin_memory": "a thread of its own reads "
    "batches ahead",
    "push_to_hub hub_model_id hub_private_repo": "`flaxformer-lite export hf RUN ORG/NAME --push` pushes a run",
    "torch_compile": "every step is compiled",
    "use_cpu no_cuda device accelerator": "JAX takes the fastest device; the variable JAX_PLATFORMS=cpu chooses the CPU",
    "gpus n_gpu num_gpus devices num_nodes tpu_cores strategy local_rank ddp": "all devices that JAX has train: the variable "
    "CUDA_VISIBLE_DEVICES=0 leaves one, and {train.mesh.fsdp} divides a model over several",
    "deepspeed": "it is {train.mesh.fsdp}, the number of devices that divide parameters and optimizer",
}
"""Names in other toolkits, most of them those of transformers' TrainingArguments, and the end of the message on them, with the
settings in braces."""


def habit(setting: str) -> str:
    """Returns the text on a name of another toolkit: that of the longest known name at its end; "" without any."""
    name = re.sub(r"[-_]", "", setting.rpartition(".")[2]).lower()
    known = dict[str, str]()
    for others, text in HABITS.items():
        known |= dict.fromkeys(others.replace("_", "").split(), text)
    ends = [other for other in known if name.endswith(other)]
    return known[max(ends, key=len)] if ends else ""


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
    name = setting.rpartition(".")[2]
    known = sorted(known, key=lambda path: path.count("."))
    near = [path for path in known if path.startswith(setting) or path.rpartition(".")[2] == name]
    if not 0 < len(near) <= 3:
        alike = difflib.get_close_matches(name, {path.rpartition(".")[2] for path in known}, 2, 0.7)
        near = [path for path in known if path.rpartition(".")[2] in alike][:3]
    return f"perhaps you meant {' or '.join(map(show, near))}" if near else ""
