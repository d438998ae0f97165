"""The adapter of lm-evaluation-harness against sums of the logits that `run.forward` returns, in float64."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.inference.config import DecodeConfig, Sampling
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.objectives import CausalLM
from flaxformer_lite.run import Run, load, write_run
from flaxformer_lite.text.characters import Bytes
from flaxformer_lite.text.special_ids import BOS
from flaxformer_lite.text.tokenizer import Tokenizers
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_params

lm_eval = pytest.importorskip("lm_eval", reason='lm-evaluation-harness is not installed: pip install -e ".[lm-eval]"')
from lm_eval.api.instance import Instance  # noqa: E402  # once it is known to be there
from lm_eval.tasks import TaskManager  # noqa: E402

from flaxformer_lite.run.harness import HarnessModel  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow

CONFIG = Config(
    model=ModelConfig(
        vocab_size=260,
        d_model=6,
        num_heads=2,
        d_ff=5,
        num_encoder_layers=0,
        num_decoder_layers=1,
        positions=Learned(max_positions=24, stddev=1.0),
    ),
    objective=CausalLM(),
    data=DataConfig(tokenizer=Bytes(), max_target_length=24),
    decode=DecodeConfig(max_new_tokens=5),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A decoder with random weights that reads bytes, from its folder."""
    generator = np.random.default_rng(5)
    params = jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_params(CONFIG))
    path, tokenizer = tmp_path_factory.mktemp("runs") / "bytes", Bytes().train([], 260)
    write_run(RunFolder(path), CONFIG, 0, params, "drawn by a test", tokenizers=Tokenizers(tokenizer, tokenizer))
    return load(path)


@pytest.fixture(scope="module")
def model(run: Run) -> HarnessModel:
    return HarnessModel(str(run.folder.path))


def requests(kind: str, *arguments: tuple) -> "Sequence[Instance]":
    return [Instance(kind, {}, argument, i) for i, argument in enumerate(arguments)]


def score(run: Run, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Returns the sum over a continuation of the logits' log-softmax, in float64, and whether each token is the largest."""
    ids = context + continuation
    logits = np.asarray(run.forward(input_ids=[ids]).logits, np.float64)[0, len(context) - 1 : -1]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    best = logits.argmax(-1).tolist()
    return float(sum(row[token] for row, token in zip(log_probs, continuation, strict=True))), best == continuation


def ids(model: HarnessModel, text: str) -> list[int]:
    return model.tok_encode(text, add_special_tokens=False)


def test_log_likelihoods_are_those_of_the_logits(run: Run, model: HarnessModel):
    """Also without a context, and of the greedy continuation; a context too long loses its beginning."""
    best = int(run.forward(input_ids=[[BOS, *ids(model, "ab")]]).logits[0, -1].argmax())
    pairs = [("ab", "cd"), ("", "xyz"), ("a longer context", " here"), ("w" * 40, "end")]
    found = model.loglikelihood(requests("loglikelihood", *pairs))
    whole = [([BOS, *ids(model, context)], ids(model, continuation)) for context, continuation in pairs]
    cut = [(([*context, *continuation][-24:])[: -len(continuation)], continuation) for context, continuation in whole]
    for (value, is_greedy), (context, continuation) in zip(found, cut, strict=True):
        expected, best_of_all = score(run, context, continuation)
        assert value == pytest.approx(expected, abs=1e-4) and is_greedy == best_of_all
    ((_, is_greedy),) = model._loglikelihood_tokens([(None, [BOS, *ids(model, "ab")], [best])])
    assert is_greedy


def test_a_long_text_is_scored_in_windows_each_token_once(run: Run, model: HarnessModel):
    text = "0123456789" * 5
    tokens = ids(model, text)
    windows = [([BOS], tokens[:23]), (tokens[22:23], tokens[23:46]), (tokens[26:46], tokens[46:])]
    assert sum(len(predicted) for _, predicted in windows) == len(tokens)
    expected = sum(score(run, *window)[0] for window in windows)
    assert model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,))) == [
        pytest.approx(expected, abs=1e-4)
    ]


def test_answers_are_those_of_generate(run: Run, model: HarnessModel):
    settings = {"until": ["\n\n"], "max_gen_toks": 4, "do_sample": False, "temperature": 0.0}
    found = model.generate_until(
        requests("generate_until", ("ab", settings), ("cd", {"until": "\n", "max_gen_toks": 3}))
    )
    assert found == [
        run.generate(["ab"], max_new_tokens=4)[0],
        run.generate(["cd"], max_new_tokens=3)[0].split("\n")[0],
    ]
    whole = run.generate(["ab"], max_new_tokens=4)[0]
    (cut,) = model.generate_until(requests("generate_until", ("ab", settings | {"until": [whole[1]]})))
    assert cut == whole[: whole.index(whole[1])]


def test_answers_are_greedy_where_the_run_itself_samples_or_has_a_beam(run: Run, model: HarnessModel):
    """An imported chat model samples by its generation_config.json; a task without do_sample is greedy all the same."""
    for decode in (DecodeConfig(sampling=Sampling(temperature=9.0), num_hypotheses=2), DecodeConfig(beam_size=4)):
        other = HarnessModel(dataclasses.replace(run, config=dataclasses.replace(CONFIG, decode=decode)))
        assert other.answers(["ab", "cd"], max_gen_toks=5) == model.answers(["ab", "cd"], max_gen_toks=5)


def test_an_answer_that_leaves_no_room_for_a_prompt_is_refused(model: HarnessModel):
    with pytest.raises(ValueError, match="max_gen_toks is 24: it must be below 24"):
        model.answers(["ab"], max_gen_toks=24)


def test_an_encoder_decoder_is_refused(run: Run):
    translator = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, num_encoder_layers=1))
    with pytest.raises(ValueError, match="does not continue it: use translate"):
        HarnessModel(dataclasses.replace(run, config=translator))


def test_a_task_of_a_local_file_is_evaluated(model: HarnessModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A multiple choice, as the harness itself runs it: the accuracy is that of the larger log-probability."""
    for module in ("huggingface_hub.constants", "datasets.config"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", True)  # the environment was read when they were imported
    rows: list[Any] = [
        {"question": q, "choices": ["red", "blue"], "answer": i % 2} for i, q in enumerate(("sky", "sea", "sun"))
    ]
    file = tmp_path / "colours.json"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = {
        "task": "colours",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}:",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    manager = TaskManager(include_defaults=False)  # else it reads its own tasks, 25 s
    scores = lm_eval.simple_evaluate(model=model, tasks=[task], task_manager=manager, bootstrap_iters=0)
    right = 0
    for row in rows:
        pairs = [(f"{row['question']}:", f" {choice}") for choice in row["choices"]]
        found = [value for value, _ in model.loglikelihood(requests("loglikelihood", *pairs))]
        right += int(np.argmax(found)) == row["answer"]
    assert scores["results"]["colours"]["acc,none"] == pytest.approx(right / len(rows))
