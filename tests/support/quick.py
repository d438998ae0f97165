"""Suites for one law: the fast one runs it on a few cases, the slow one on the others; of a long table CI runs some slow cases."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def quick(cases: Iterable[Any], is_quick: Callable[[Any], bool]) -> list[Any]:
    """Marks those cases of a parametrized test as slow that the fast suite does without."""
    return [pytest.param(case, marks=[] if is_quick(case) else pytest.mark.slow) for case in cases]


EVERY: dict[str, int | tuple[str, ...]] = {
    "cli/test_exporting.py::test_exported_weights_equal_the_imported_ones_bit_for_bit": 2,
    "cli/test_main.py::test_devices_that_are_not_there_are_one_line": ("cuda", "cpu,nowhere"),
    "cli/test_main.py::test_no_library_writes_to_the_stderr_of_who_did_nothing_wrong": (),
    "core/model/test_cache.py::test_a_position_depends_on_all_that_its_layers_reach_and_on_nothing_else": 3,
    "core/model/test_cache.py::test_cached_decoding_equals_the_full_pass": 3,
    "core/model/test_cache.py::test_logits_equal_the_float64_reference": 3,
    "core/model/test_cache.py::test_packed_documents_are_each_as_if_alone": 3,
    "core/model/test_extending_attention.py::test_a_query_without_keys_has_a_finite_gradient_and_dropout_works": (),
    "core/model/test_extending_attention.py::test_answers_that_change_with_padding_are_refused": 3,
    "core/model/test_extending_attention.py::test_greedy_decoding_with_a_cache_equals_the_full_pass": 2,
    "core/model/test_extending_attention.py::test_masked_keys_do_not_matter": (),
    "core/model/test_extending_attention.py::test_the_train_step_lowers_the_loss_and_moves_the_variants_own_parameters": 4,
    "core/model/test_extending_attention.py::test_the_variants_of_this_file_pass_the_check_of_a_training": 4,
    "core/model/test_kernels.py::test_answers_and_gradients_equal_the_float64_reference": 6,
    "core/model/test_kernels.py::test_the_blocks_of_splash_change_no_answer_and_no_gradient": 3,
    "core/model/test_kernels.py::test_what_is_handed_to_cudnn_means_the_same": 3,
    "core/model/test_lora.py::test_a_model_starts_as_without_adapters_bit_for_bit": 3,
    "core/objectives/test_embeddings.py::test_losses_and_gradients_are_those_of_sentence_transformers": 3,
    "core/objectives/test_extending.py::test_a_trained_one_generates_as_without_a_cache": 2,
    "core/objectives/test_extending.py::test_every_position_scheme_reads_a_full_prompt": 2,
    "core/objectives/test_language_models.py::test_it_trains_continues_and_is_scored": ("span_corruption",),
    "core/objectives/test_objectives.py::test_losses_and_metrics_are_sums_over_rows_with_a_gradient": 6,
    "core/objectives/test_reranking.py::test_a_reranker_learns_which_candidate_has_the_letter_of_the_query": (),
    "core/objectives/test_reranking.py::test_losses_and_gradients_are_those_of_sentence_transformers": 2,
    "core/objectives/test_several_labels.py::test_losses_and_gradients_are_those_of_torch": 2,
    "core/objectives/test_whole_texts.py::test_classes_are_learned_and_predicted": ("encoder",),
    "core/placement/test_drawn_placements.py::test_drawn_searches_answer_as_on_one_device": 32,
    "core/placement/test_placement.py::test_devices_of_a_group_exchange_no_weights_and_no_logits": ("4",),
    "core/placement/test_placement.py::test_groups_exchange_nothing_but_the_number_of_steps": (),
    "core/placement/test_placement.py::test_the_cache_keeps_its_sharding_and_the_state_is_donated": 3,
    "core/placement/test_placement.py::test_the_number_of_groups_changes_no_bit": ("beam-8",),
    "core/search/test_drawn_decoding.py::test_draws_of_generate_beside_the_library": (),
    "core/search/test_drawn_decoding.py::test_recorded_draws_of_generate": 8,
    "core/search/test_rows.py::test_answers_are_those_of_one_program_and_few_rows_are_left": 2,
    "core/search/test_search.py::test_rules_for_answers_equal_uncached_reference": 4,
    "engine/test_exports.py::test_a_killed_export_leaves_nothing_that_looks_whole": 2,
    "engine/test_search.py::test_drawn_settings_mean_the_same": 32,
    "engine/test_search.py::test_prompts_are_continued_by_the_same_tokens": 12,
    "files/chats/test_asking.py::test_the_prompts_are_those_of_the_library": 4,
    "interop/hf/test_carried.py::test_every_field_that_is_still_true_is_in_the_export": 32,
    "interop/hf/test_decoder_only.py::test_a_model_trained_here_finds_its_family": 9,
    "interop/hf/test_folders.py::test_a_model_that_was_trained_here_becomes_a_folder": 4,
    "interop/hf/test_generation.py::test_the_same_tokens_are_generated": 28,
    "interop/hf/test_hf.py::test_exported_tensors_equal_the_imported_ones": 32,
    "interop/hf/test_hf.py::test_outputs_equal_those_of_the_library": 16,
    "interop/hf/test_languages.py::test_pairs_fine_tune_an_imported_run_in_the_rows_of_the_library": ("nllb", "mbart"),
    "interop/hf/test_layouts.py::test_a_drawn_layout_is_read_as_the_plain_folder_or_refused_by_name": 16,
    "interop/hf/test_onnx.py::test_onnx_runtime_computes_the_logits_of_the_run": 2,
    "interop/hf/test_peft.py::test_adapters_answer_as_in_peft_as_they_are_and_merged": 3,
    "interop/hf/test_published.py::test_a_published_checkpoint_is_read": 12,
    "interop/hf/test_tokenizer_classes.py::test_the_record_is_that_of_the_library": 12,
    "interop/hf/test_training.py::test_losses_and_gradients_are_the_librarys": 3,
    "interop/test_check.py::test_transformers_answers_as_we_do_and_a_changed_parameter_is_noticed": 40,
    "interop/test_ctranslate2.py::test_beams_are_equal_for_every_family": 9,
    "interop/test_ctranslate2.py::test_scores_of_given_texts_are_equal": 6,
    "interop/test_exporting.py::test_an_imported_model_fits_the_family_that_it_is_from": 4,
    "interop/test_interop.py::test_import_then_export_is_the_identity": 6,
    "laws/test_contracts.py::test_every_config_lowers": 6,
    "laws/test_extending.py::test_the_hook_of_the_guide_mails_from_a_config_file": (),
    "laws/test_hostile_files.py::test_files_of_older_systems": 3,
    "laws/test_hostile_files.py::test_hugging_face_folders": 3,
    "laws/test_kills.py::test_a_run_that_is_disturbed_at_any_moment_ends_as_if_nothing_was": ("one_process-kill",),
    "laws/test_load.py::test_a_long_file_is_translated_in_bounded_memory": (),
    "laws/test_notebooks.py::test_it_runs_from_top_to_bottom": ("quickstart", "chat_with_adapters"),
    "laws/test_recipes.py::test_a_recipe_continues_its_base": ("quickstart-dates_before_1900",),
    "laws/test_seed_systems.py::test_every_entry_agrees": 8,
    "laws/test_seed_systems.py::test_every_entry_agrees_in_float32_too": 10,
    "run/test_devices.py::test_predictions_for_texts_are_those_of_one_device": ("rows",),
    "run/test_devices.py::test_translations_and_metrics_are_those_of_one_device": ("rows",),
    "run/test_extending.py::test_old_languages_are_translated_bit_for_bit_as_before": 3,
    "run/test_languages.py::test_several_directions_are_trained_and_scored_each_and_together": 2,
    "run/test_recording.py::test_the_rows_of_a_step_are_those_that_the_trainer_received": 12,
    "tasks/test_answer.py::test_a_tiny_run_learns_to_answer": (),
    "tasks/test_engine_model.py::test_vectors_and_classes_are_those_of_jax": 2,
    "tasks/test_label.py::test_a_tiny_run_learns_days": (),
    "test_benchmarks.py::test_one_table_has_our_step_and_pytorch_eager_and_compiled": (),
    "test_benchmarks.py::test_the_toy_form_measures_the_real_step_beside_pytorch": 3,
    "tools/fit/test_fit.py::test_the_head_is_that_of_the_models_family": 3,
    "tools/planning/test_plan.py::test_an_encoder_with_windows_trains_on_8192_tokens_on_one_small_chip": (),
    "tools/planning/test_plan.py::test_every_chip_and_a_whole_pod": 2,
    "tools/planning/test_plan.py::test_every_config_compiles": ("quickstart",),
    "tools/recorder/test_rerun.py::test_damaged_rows_have_the_highest_losses": (),
    "tools/research/test_drawn_answers.py::test_training_lowers_the_risk_on_one_device_and_on_a_mesh": (),
    "tools/test_corpus.py::test_a_signal_leaves_whole_pieces": ("15",),
    "tools/serve/test_server.py::test_ten_thousand_requests_with_clients_that_go": (),
    "training/multihost/test_multihost.py::test_a_pmap_of_processes_is_one_with_micro_batches": (),
    "training/multihost/test_multihost.py::test_a_signal_to_one_in_an_evaluation_ends_it_in_all_after_the_same_batch": (),
    "training/multihost/test_multihost.py::test_hosts_that_share_only_a_bucket": (),
    "training/multihost/test_multihost.py::test_one_whose_partner_dies_before_its_devices_are_known_ends_with_a_word": (),
    "training/multihost/test_multihost.py::test_processes_in_other_folders_do_not_train": (),
    "training/multihost/test_multihost.py::test_processes_that_wait_in_vain_end_with_a_word": 2,
    "training/multihost/test_multihost.py::test_text_metrics_and_samples_are_those_of_one_process": (),
    "training/multihost/test_multihost.py::test_when_one_is_killed_all_stop_and_start_again": 2,
    "training/test_extending.py::test_an_exception_in_a_hook_costs_no_step": 4,
    "training/test_freezing.py::test_a_run_that_was_stopped_ends_bit_for_bit_as_one_that_was_not": (),
    "training/test_freezing.py::test_frozen_parameters_keep_their_bits_and_the_others_move": 6,
    "training/test_freezing.py::test_frozen_parameters_lie_in_bfloat16": (),
    "training/test_loop.py::test_a_closed_terminal_does_not_stop_it": 2,
    "training/test_loop.py::test_a_loss_that_is_not_finite_ends_the_run_with_a_word": 2,
    "training/test_loop.py::test_a_real_process_saves_and_exits_0_on_a_signal": 2,
    "training/test_loop.py::test_crashed_it_loses_only_what_came_after_the_last_checkpoint": 2,
    "training/test_loop.py::test_stopped_by_a_signal_it_saves_and_goes_on_as_if_nothing_was": 2,
    "training/test_lora.py::test_only_adapters_move_and_all_of_them": ("fsdp 2, tensor 3",),
    "training/test_lora.py::test_the_numbers_do_not_depend_on_the_mesh": ("fsdp 2, tensor 3",),
    "training/test_many_devices.py::test_a_checkpoint_is_read_onto_any_mesh": 3,
    "training/test_many_devices.py::test_every_mesh_is_one_device": 4,
    "training/test_many_devices.py::test_every_optimizer_on_a_mesh_is_one_device": 4,
    "training/test_many_devices.py::test_nothing_but_one_layer_is_gathered_at_a_time": ("fsdp 2, tensor 2, data 2",),
    "workdir/test_checkpoints.py::test_a_damaged_checkpoint_is_passed_over_with_one_line": 12,
    "workdir/test_checkpoints.py::test_killed_while_saving_many_times_the_newest_is_whole": ("v0",),
    "workdir/test_checkpoints.py::test_only_errors_of_orbax_pass_that_nobody_raises": 3,
}
"""Of the slow cases of these tests CI runs each so many-th, from the first on, or those that are named; the others are rare. A test
without any is one whose law another slow test holds too."""


def mark_rare(items: Iterable[pytest.Item]) -> None:
    """Marks the slow cases as rare that CI leaves out."""
    numbers = Counter[str]()
    for item in items:
        name = item.nodeid.removeprefix("tests/").partition("[")[0]
        if (every := EVERY.get(name)) is None or item.get_closest_marker("slow") is None:
            continue
        case = item.nodeid.partition("[")[2].removesuffix("]")
        left_out = numbers[name] % every > 0 if isinstance(every, int) else case not in every
        numbers[name] += 1
        if left_out:
            item.add_marker("rare")
