"""The adapter of lm-evaluation-harness against sums of the logits that `run.forward` returns, in float64, and against the harness's
own adapter of Hugging Face's models, where PyTorch and transformers are installed."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.inference.config import DecodeConfig, Sampling
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.objectives import CausalLM
from flaxformer_lite.run import Run, load, write_run
from flaxformer_lite.text.characters import Bytes
from flaxformer_lite.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.text.special_ids import BOS
from flaxformer_lite.text.tokenizer import Tokenizers
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_params
from tests.support import needs
from tests.support.hf_folders import DATA
from tests.support.tokenizers import NAMES, bytes_joined

lm_eval = pytest.importorskip("lm_eval", reason='lm-evaluation-harness is not installed: pip install -e ".[lm-eval]"')
from lm_eval.api.instance import Instance  # noqa: E402  # once it is known to be there
from lm_eval.tasks import TaskManager  # noqa: E402

from flaxformer_lite.tools.ops.harness import HarnessModel  # noqa: E402

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
    logits = np.asarray(run.forward(input_ids=[ids[:-1]]).logits, np.float64)[0, len(context) - 1 :]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    best = logits.argmax(-1).tolist()
    return float(sum(row[token] for row, token in zip(log_probs, continuation, strict=True))), best == continuation


def ids(model: HarnessModel, text: str) -> list[int]:
    return model.tok_encode(text, add_special_tokens=False)


def test_log_likelihoods_are_those_of_the_logits(run: Run, model: HarnessModel):
    """Also without a context, and of the greedy continuation; of a context too long, all that fits beside the other tokens read."""
    best = int(run.forward(input_ids=[[BOS, *ids(model, "ab")]]).logits[0, -1].argmax())
    pairs = [("ab", "cd"), ("", "xyz"), ("a longer context", " here"), ("w" * 40, "end")]
    found = model.loglikelihood(requests("loglikelihood", *pairs))
    whole = [([BOS, *ids(model, context)], ids(model, continuation)) for context, continuation in pairs]
    cut = [(([*context, *continuation][-25:])[: -len(continuation)], continuation) for context, continuation in whole]
    for (value, is_greedy), (context, continuation) in zip(found, cut, strict=True):
        expected, best_of_all = score(run, context, continuation)
        assert value == pytest.approx(expected, abs=1e-4) and is_greedy == best_of_all
    ((_, is_greedy),) = model._loglikelihood_tokens([(None, [BOS, *ids(model, "ab")], [best])])
    assert is_greedy


def test_a_long_text_is_scored_in_windows_each_token_once(run: Run, model: HarnessModel):
    text = "0123456789" * 5
    tokens = ids(model, text)
    windows = [([BOS], tokens[:24]), (tokens[23:24], tokens[24:48]), (tokens[25:48], tokens[48:])]
    assert sum(len(predicted) for _, predicted in windows) == len(tokens)
    expected = sum(score(run, *window)[0] for window in windows)
    assert model.loglikelihood_rolling(requests("loglikelihood_rolling", (text,))) == [
        pytest.approx(expected, abs=1e-4)
    ]


def test_a_continuation_that_the_model_cannot_read_is_refused(model: HarnessModel):
    """As many tokens as the model reads are scored; the harness's own adapter fails an assertion after them, too."""
    ((value, _),) = model.loglikelihood(requests("loglikelihood", ("a", "b" * 24)))
    assert np.isfinite(value)
    with pytest.raises(ValueError, match="a continuation has 25 tokens, but the model reads 24 at most"):
        model.loglikelihood(requests("loglikelihood", ("a", "b" * 25)))


def test_a_text_that_has_the_begin_token_gets_no_second_one(run: Run):
    """Law: such a context, prompt or text is read, continued and scored as the one without it."""
    model = HarnessModel(run)
    model.text_tokenizer = JsonTokenizer.of(bytes_joined().to_str(), NAMES)
    assert model.tok_encode("<s>ab") == model.tok_encode("ab") == [0, *ids(model, "ab")]
    assert model.tok_encode("<s>") == model.tok_encode("") == [0]
    assert model.tok_encode("a<s>b") == [0, *ids(model, "a<s>b")]
    pairs = [("ab", "cd"), ("<s>ab", "cd"), ("", "cd"), ("<s>", "cd"), ("", "<s>cd")]
    found = [value for value, _ in model.loglikelihood(requests("loglikelihood", *pairs))]
    assert found[0] == found[1] and found[2] == found[3] == found[4]
    assert found[0] == pytest.approx(score(run, [0, *ids(model, "ab")], ids(model, "cd"))[0], abs=1e-4)
    rolling = model.loglikelihood_rolling(requests("loglikelihood_rolling", ("cd",), ("<s>cd",), ("<s>",), ("",)))
    assert rolling == [pytest.approx(found[2], abs=1e-4), rolling[0], 0.0, 0.0]
    until = {"until": ["\n"], "max_gen_toks": 3}
    answers = model.generate_until(requests("generate_until", ("ab", until), ("<s>ab", until)))
    assert answers[0] == answers[1]


@needs.transformers
def test_numbers_are_those_of_the_harness_for_the_librarys_model(tmp_path: Path):
    """Oracle: `HFLM`. Its rolling likelihood also has the begin token that the tokenizer adds, after another one; ours has not."""
    pytest.importorskip("accelerate", reason="accelerate, which the harness's adapter imports, is not installed")
    from lm_eval.models.huggingface import HFLM

    folder, run = Path(shutil.copytree(DATA / "llama/mha", tmp_path / "model")), tmp_path / "run"
    words = ["<unk>", "<s>", "</s>", "<pad>", *(f"w{i}" for i in range(4, 41))]
    made = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    made.add_special_tokens(words[:4])
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    import_hf(folder, run)

    theirs = HFLM(pretrained=str(folder), max_length=12, batch_size=1, device="cpu", dtype="float32")
    ours = HarnessModel(str(run), max_length=12)
    text = " ".join(words[4:40])
    pairs = [("w5 w6", " w7"), ("", "w7 w8"), ("<s> w5", " w9 w7"), (text, " w40 w4"), (text[:30], text[30:70])]
    found, expected = (model.loglikelihood(requests("loglikelihood", *pairs)) for model in (ours, theirs))
    np.testing.assert_allclose([value for value, _ in found], [value for value, _ in expected], atol=1e-4)
    assert [best for _, best in found] == [best for _, best in expected]

    texts = requests("loglikelihood_rolling", ("w5 w6 w7",), (text,))
    rolling, with_begin = ours.loglikelihood_rolling(texts), theirs.loglikelihood_rolling(texts)
    windows = [([1], [1, *range(4, 15)]), ([14], [*range(15, 27)]), ([26], [*range(27, 39)]), ([*range(27, 39)], [39])]
    parts = [score(ours.run, context, continuation)[0] for context, continuation in windows]
    assert with_begin == [
        pytest.approx(score(ours.run, [1], [1, 5, 6, 7])[0], abs=1e-4),
        pytest.approx(sum(parts), abs=1e-4),
    ]
    without = HFLM(theirs.model, max_length=12, batch_size=1, tokenizer=str(folder), add_bos_token=False)
    assert rolling == [pytest.approx(value, abs=1e-4) for value in without.loglikelihood_rolling(texts)]
    until = {"until": ["w9"], "max_gen_toks": 5}
    prompts = requests("generate_until", ("w5 w6", until), ("<s> w5 w6", until), (text, until))
    assert [answer.split() for answer in ours.generate_until(prompts)] == [
        a.split() for a in theirs.generate_until(prompts)
    ]


def test_other_names_of_the_length_are_read(run: Run, model: HarnessModel):
    """Oracle: the harness's own list; a temperature alone draws, as there."""
    for name in ("max_new_tokens", "max_tokens"):
        found = model.generate_until(requests("generate_until", ("ab", {"until": ["\n\n"], name: 3})))
        assert found == run.generate(["ab"], max_new_tokens=3)
    found = model.generate_until(requests("generate_until", ("ab", {"max_gen_toks": 4, "temperature": 2.5})))
    assert found == run.generate(["ab"], max_new_tokens=4, temperature=2.5)


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
