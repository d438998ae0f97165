"""Names of other toolkits. Oracles: transformers' own list of names, and the settings that each message and the page must name."""

import dataclasses
import re
from pathlib import Path

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.config.options import as_option
from flaxformer_lite.config.other_names import HABITS, habit
from flaxformer_lite.config.settings import MARKS
from tests.support.experiments import tiny_config
from tests.support.paths import ROOT
from tests.support.wrong_names import messages_on

PAGE = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").partition("### Names of other toolkits")[2]
ROWS = re.findall(r"^\| (`.*?) \| (.*) \|$", PAGE.partition("\n## ")[0], re.M)
NAMED = [(name, there) for names, there in ROWS for name in re.findall("`(.+?)`", names)]
NAMES = [name for names in HABITS for name in names.split()]
OF_SCRIPTS = """
train_file train_data train_dataset train_path dataset_name dataset_config_name data_path data_dir train_split train_split_name
validation_file validation_data valid_data valid_file eval_file eval_data eval_dataset dev_file test_file test_data test_dataset
test_size train_size validation_size validation_split valid_split eval_split validation_split_percentage max_train_samples
max_eval_samples max_predict_samples max_samples task_name problem_type text_column text_column_name text_columns text_field
dataset_text_field sentence1_key label_column_name label_key column_mapping num_labels id2label label2id base_model model_name
model_name_or_path model_revision revision hub_token use_auth_token cache_dir trust_remote_code ignore_mismatched_sizes
max_length max_seq_length max_seq_len max_len seq_length model_max_length block_size truncation pad_to_max_length padding
doc_stride version_2_with_negative null_score_diff_threshold label_all_tokens project_name output_path do_test num_workers
"""
"""Names of the library's scripts and of its pipelines, of AutoTrain, and of `train_test_split`."""
OF_TRAINERS = """
num_epochs steps_per_epoch total_steps limit_train_batches train_batch_size batch_size mini_batch_size eval_batch_size
gradient_accumulation accumulate_grad_batches lr lr_scheduler scheduler warmup warmup_ratio beta1 beta2 betas gradient_clip_val
gradient_clipping clip_grad_norm clipnorm mixed_precision precision half_precision use_amp torch_dtype load_in_4bit load_in_8bit
quantization lora_r lora_alpha lora_rank target_modules use_peft peft_config freeze freeze_layers freeze_backbone freeze_encoder
unfreeze classifier_dropout hidden_dropout_prob hidden_dropout attention_probs_dropout_prob attention_dropout pos_weight
sample_weight overwrite_output_dir default_root_dir save_dir resume ckpt_path evaluation_strategy val_check_interval
check_val_every_n_epoch save_interval enable_checkpointing log_every_n_steps log_interval logging_dir monitor
early_stopping_patience early_stopping_threshold early_stop compute_metrics use_wandb wandb logger random_state random_seed
deterministic shuffle callbacks callback group_by_length drop_last pin_memory loss_type use_ema ema matryoshka_dims no_cuda device
accelerator gpus n_gpu num_gpus devices num_nodes tpu_cores strategy local_rank ddp
"""
"""Names of older releases, of PEFT and sentence-transformers, of Lightning and of Keras."""
OF_OTHERS = {*OF_SCRIPTS.split(), *OF_TRAINERS.split()}


def test_each_setting_that_a_message_names_exists():
    for text in HABITS.values():
        assert {*re.findall(r"\{(.+?)\}", text)} <= {*MARKS}, text


@pytest.mark.slow  # it imports the library
def test_the_names_are_those_of_the_library():
    arguments = pytest.importorskip("transformers").TrainingArguments
    assert {*NAMES} - OF_OTHERS <= {field.name for field in dataclasses.fields(arguments)}


@pytest.mark.parametrize(("name", "there"), NAMED)
def test_the_page_names_settings_that_exist_and_messages_name_them_too(name: str, there: str):
    settings = re.findall("`(.+?)`", there)
    assert settings and {*settings} <= {*MARKS}
    with pytest.raises(ValueError) as caught:
        load_config("char_lm", [f"--{name}", "1"])
    said = str(caught.value)
    for setting in settings:
        assert as_option(setting) in said, said


def test_the_page_has_at_least_ten_rows():
    assert len(ROWS) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_answered_on_the_command_line_in_files_and_in_json(name: str, tmp_path: Path):
    text = habit(name)
    first = re.search(r"\{(.+?)\}", text)
    imported, call = "from flaxformer_lite.config import TrainConfig", f"TrainConfig({name}=1)"
    typed, read, run = messages_on(tiny_config(), "train", name, imported, call, tmp_path)
    assert "there is no option" in typed
    assert f"there is no setting train.{name}; " in read
    assert re.search(r"mine\.py, line 5: TypeError: TrainConfig.*; ", run)
    for said in (typed, read, run):
        shown = as_option(first[1]) if first and said is typed else first[1] if first else text
        assert shown in said and "{" not in said and len(said.splitlines()) == 1, said


def test_the_mistake_of_another_class_gets_no_setting(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("class Own:\n    pass\n\n\ndef get_config():\n    return dict().get(lr=1) or Own(lr=1)\n")
    with pytest.raises(ValueError, match="TypeError") as caught:
        load_config(str(file))
    assert "peak_rate" not in str(caught.value)
