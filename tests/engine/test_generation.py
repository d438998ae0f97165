"""Prompts that CTranslate2 continues. Oracle: the same run in JAX."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.model.config import SlidingWindow
from flaxformer_lite.core.search.generation import watch_stops
from flaxformer_lite.engine.engine_run import EngineRun, open_engine
from flaxformer_lite.engine.exports import RunWeights
from flaxformer_lite.run import Run, load
from tests.support import needs
from tests.support.engine_runs import DECODER, write_random_decoder
from tests.support.experiments import use_one_device
from tests.support.paths import ROOT

pytestmark = [needs.ctranslate2, pytest.mark.usefixtures("one_device"), pytest.mark.slow]
PROMPTS = ["a", "", "long prompt", "b"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        return load(write_random_decoder(tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture(scope="module")
def engine(run: Run) -> EngineRun:
    return open_engine(RunWeights(str(run.path)), "Generator")


@pytest.mark.parametrize(
    "options",
    [{}, {"max_new_tokens": 3}, {"beam_size": 3, "num_hypotheses": 3}, {"beam_size": 2, "early_stopping": False}],
)
def test_texts_and_scores_are_those_of_the_run(run: Run, engine: EngineRun, options: dict[str, Any]):
    expected = run.completions(PROMPTS, **options)
    for found in (
        engine.generator.completions(PROMPTS, **options),
        run.completions(PROMPTS, engine="ctranslate2", **options),
    ):
        assert [[one.text for one in ranked] for ranked in found] == [
            [one.text for one in ranked] for ranked in expected
        ]
        scores = [[one.score for one in ranked] for ranked in expected]
        assert [[one.score for one in ranked] for ranked in found] == [pytest.approx(of, abs=2e-5) for of in scores]
    ids = [[9, 8], [7]]
    assert engine.generator.completions_of_ids(ids)[0][0].tokens == run.completions_of_ids(ids)[0][0].tokens


def test_a_stop_text_that_never_comes_changes_no_score(engine: EngineRun):
    never, without = (engine.generator.completions(PROMPTS, stop=stop, max_new_tokens=4) for stop in (["\u2603"], []))
    assert [one.text for (one,) in never] == [one.text for (one,) in without]
    np.testing.assert_allclose([one.score for (one,) in never], [one.score for (one,) in without], rtol=1e-5)


def test_stop_texts_streams_and_chats_are_those_of_the_run(run: Run, engine: EngineRun):
    texts = run.generate(PROMPTS)
    stop = [texts[0][3:5], texts[2][1:3]]
    assert all(stop)
    for options in ({}, {"batch_tokens": 8}, {"finish_at_limit": False, "max_new_tokens": 7}):
        found, wanted = (one.completions(PROMPTS, stop=stop, **options) for one in (engine.generator, run))
        assert [one.text for (one,) in found] == [one.text for (one,) in wanted] != texts
    for prompt, text in zip(PROMPTS, texts, strict=True):
        parts = [*engine.generator.stream(prompt)]
        assert "".join(parts) == text and len(parts) > 1
    assert "".join(engine.generator.stream("a", stop=stop)) == "".join(run.stream("a", stop=stop)) != texts[0]
    messages = [{"role": "user", "content": "hello"}]
    assert "".join(engine.generator.chat(messages)) == "".join(run.chat(messages))


def test_prompts_with_a_stop_text_share_the_calls_of_those_without(engine: EngineRun, monkeypatch: pytest.MonkeyPatch):
    calls = list[int]()

    class Counting:
        def generate_batch(self, prompts: list[list[str]], **options: Any) -> Any:
            calls.append(len(prompts))
            return engine.library.generate_batch(prompts, **options)

    search = engine.generator.decoder()
    monkeypatch.setattr(search, "translator", Counting())
    prompts, stops = [[9, 8], [7, 6], [5, 4]], [[], ["a"], []]
    watch = watch_stops(engine.generator.tokenizer, prompts, stops)
    assert search.generate(None, prompts, watch=watch)[::2] == search.generate(None, prompts)[::2]
    assert calls == [3, 3]


def test_a_chat_at_a_url_has_the_template_of_the_run(run: Run):
    at_url = open_engine(RunWeights(f"file://{run.path}"), "Generator")
    messages = [{"role": "user", "content": "hello"}]
    assert "".join(at_url.generator.chat(messages)) == "".join(run.chat(messages)) != ""


def test_a_stream_that_is_left_ends_its_search(engine: EngineRun):
    stream: Any = engine.generator.stream("a")
    next(stream)
    stream.close()
    assert engine.generator.completions(["a"])[0][0].text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.7}, r"decode\.sampling .*: change that, or choose engine jax"),
        ({"repetition_penalty": 1.2}, r"decode\.repetition_penalty 1\.2"),
        ({"forced_bos_id": 5}, r"decode\.forced_bos_id 5"),
    ],
)
def test_settings_that_it_does_not_obey_are_refused_by_name(run: Run, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        run.completions(PROMPTS, engine="ctranslate2", **options)
    assert run.completions(PROMPTS, engine="auto", **options) == run.completions(PROMPTS, **options)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([5] * 41, "prompt 0 has 41 tokens, but model.positions.max_positions is 40"),
        ([500], "prompt 0 has 500, which is no token id"),
        ([], "prompt 0 has no tokens: a prompt has at least 1 token"),
    ],
)
def test_prompts_that_no_model_reads_are_refused_by_their_place(engine: EngineRun, prompt: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        engine.generator.completions_of_ids([prompt])


def test_a_window_leaves_prompts_to_jax(tmp_path: Path):
    """CTranslate2 reads prompts longer than the window in blocks."""
    window = SlidingWindow(size=4)
    run = load(write_random_decoder(tmp_path / "run", replace(DECODER, sliding_window=window)))
    with pytest.raises(
        ValueError, match=r"model\.sliding_window is 4, and CTranslate2 reads long prompts otherwise, or choose"
    ):
        run.completions(PROMPTS, engine="ctranslate2")


def test_a_text_from_the_shell_needs_no_jax(run: Run):
    """Law: neither the process that finds an export nor the one that waits for it has JAX, Flax or NumPy among its modules."""
    words = ["flaxformer-lite", "generate", str(run.path), *PROMPTS, "--engine", "ctranslate2", "--stop", "zz"]
    code = (
        f"import json, sys; sys.argv = {words!r}\nfrom flaxformer_lite.cli.main import main\nmain()\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules} & {'jax', 'jaxlib', 'flax', 'numpy'})))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    *lines, modules = done.stdout.splitlines()
    texts = [
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        for text in run.generate(PROMPTS, stop=["zz"])
    ]
    assert lines == texts and json.loads(modules) == []
