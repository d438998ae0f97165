"""A server whose answers CTranslate2 gives. Oracle: the run in JAX."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.run import load
from flaxformer_lite.tools.serve.limits import Limits
from flaxformer_lite.tools.serve.requests import DecodingRequest
from flaxformer_lite.tools.serve.runs import ServedRun
from tests.support import needs
from tests.support.encoder_runs import write_encoder
from tests.support.engine_runs import LINES, write_random_decoder, write_random_run
from tests.support.limits import assert_close
from tests.support.text_runs import TEXTS as ALL

TEXTS = [text for text in ALL if 0 < len(text) < 12]
pytestmark = [needs.ctranslate2, needs.starlette, pytest.mark.slow, pytest.mark.usefixtures("one_device")]


@pytest.fixture
def jax_answers() -> None:
    """CTranslate2 is found where it is installed."""


def test_translations_are_the_engines_and_the_rest_is_that_of_jax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    from starlette.testclient import TestClient

    from flaxformer_lite.tools.serve.app import make_app

    run = load(write_random_run(tmp_path / "run"))
    expected = run.translate(LINES)
    decoded = list[Any]()
    generate = Decoder.generate
    monkeypatch.setattr(
        Decoder, "generate", lambda self, *given, **named: decoded.append(1) or generate(self, *given, **named)
    )
    limits = Limits(seconds=60.0, queue=8, texts=8, new_tokens=64)
    app = make_app({"run": run}, limits, engine={"engine": "auto", "weights_dtype": "float32"})
    assert "run: engine ctranslate2, float32" in capsys.readouterr().err
    client = TestClient(app, base_url="http://localhost")

    def answers(**body: Any) -> list[str]:
        response = client.post("/api/translate", json={"texts": LINES, **body})
        assert response.status_code == 200, response.text
        return [answer[0]["text"] for answer in response.json()["answers"]]

    try:
        assert answers() == expected and answers(beam_size=2) == run.translate(LINES, beam_size=2) and len(decoded) == 1
        assert answers(max_new_tokens=3) == run.translate(LINES, max_new_tokens=3) and len(decoded) == 2
        assert len(answers(beam_size=2, num_hypotheses=2)) == len(LINES) and len(decoded) == 3
        assert all(text.startswith("20") for text in answers(texts=["20 nov 2026"], prefix="20")) and len(decoded) == 4
        named = make_app({"run": run}, limits, engine={"engine": "ctranslate2", "weights_dtype": "float32"})
        refused = TestClient(named, base_url="http://localhost").post(
            "/api/translate", json={"texts": ["20 nov"], "prefix": "20"}
        )
        assert refused.status_code == 422 and "CTranslate2 has no terms" in refused.json()["error"]["message"]
        assert named.state.service.close(10)
        app.state.service.runs.by_name["run"].warm_up(lambda line: pytest.fail("there is nothing to compile"))
    finally:
        assert app.state.service.close(10)


def test_vectors_and_classes_are_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: no batch of texts is computed by JAX, but for masks."""
    from starlette.testclient import TestClient

    from flaxformer_lite.core.predictions.encoder import BatchPredictor
    from flaxformer_lite.tools.serve.app import make_app

    run = load(write_encoder(tmp_path / "run", objective=MaskedLM(mask_token=9)))
    vectors, classes = run.embed(TEXTS), run.classify(TEXTS)
    predicted, predict = list[Any](), BatchPredictor.predict
    monkeypatch.setattr(BatchPredictor, "predict", lambda self, *given: predicted.append(1) or predict(self, *given))
    limits = Limits(seconds=60.0, queue=64, texts=16, new_tokens=64)
    app = make_app({"run": run}, limits, engine={"engine": "auto", "weights_dtype": "float32"})
    client = TestClient(app, base_url="http://localhost")
    try:
        found = client.post("/v1/embeddings", json={"model": "run", "input": TEXTS})
        assert found.status_code == 200, found.text
        assert_close([one["embedding"] for one in found.json()["data"]], vectors)
        answers = client.post("/api/classify", json={"texts": TEXTS}).json()["answers"]
        assert [one["label"] for one in answers] == [one.label for one in classes]
        assert_close([one["score"] for one in answers], [one.score for one in classes])
        assert not predicted
        assert client.post("/api/fill-mask", json={"texts": ["a[MASK]"]}).status_code == 200 and len(predicted) == 1
        named = make_app({"run": run}, limits, engine={"engine": "ctranslate2", "weights_dtype": "float32"})
        assert "fill-mask" not in named.state.service.runs.by_name["run"].tasks
        assert named.state.service.close(10)
    finally:
        assert app.state.service.close(10)


def test_continued_prompts_and_chats_are_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: no answer without a draw is computed by JAX, whole or in parts; one with a draw is."""
    from starlette.testclient import TestClient

    from flaxformer_lite.tools.serve.app import make_app

    run = load(write_random_decoder(tmp_path / "run"))
    (text,), messages = run.generate(["a"]), [{"role": "user", "content": "hello"}]
    (stopped,), said = run.generate(["a"], stop=[text[2:4]]), "".join(run.chat(messages))
    decoded = list[str]()
    for name in ("generate", "stream"):
        asked = getattr(Decoder, name)
        monkeypatch.setattr(
            Decoder,
            name,
            lambda self, *given, asked=asked, **named: decoded.append("jax") or asked(self, *given, **named),
        )
    limits = Limits(seconds=60.0, queue=8, texts=8, new_tokens=64)
    app = make_app({"run": run}, limits, engine={"engine": "auto", "weights_dtype": "float32"})
    client = TestClient(app, base_url="http://localhost")

    def posted(path: str, **body: Any) -> Any:
        response = client.post(path, json={"model": "run", "max_tokens": 12, "temperature": 0, **body})
        assert response.status_code == 200, response.text
        return response

    try:
        assert posted("/v1/completions", prompt="a").json()["choices"][0]["text"] == text
        assert posted("/v1/completions", prompt="a", stop=[text[2:4]]).json()["choices"][0]["text"] == stopped
        answer = posted("/v1/chat/completions", messages=messages).json()["choices"][0]["message"]["content"]
        assert answer == said
        lines = posted("/v1/completions", prompt="a", stream=True).text.splitlines()
        parts = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert "".join(part["choices"][0]["text"] for part in parts if part["choices"]) == text and len(parts) > 2
        assert decoded == []
        posted("/v1/completions", prompt="a", temperature=1.0)
        assert decoded == ["jax"]
    finally:
        assert app.state.service.close(10)


def with_settings(folder: Path, **settings: Any) -> Any:
    """Returns the run of a folder whose config has these settings of decoding."""
    config = json.loads((folder / "config.json").read_bytes())
    config["decode"] |= settings
    (folder / "config.json").write_text(json.dumps(config))
    return load(folder)


LIMITS = Limits(seconds=60.0, queue=8, texts=8, new_tokens=64)
OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "decode.sampling Sampling(": ({"sampling": {"temperature": 0.5}}, {"temperature": 0.0}),
    "decode.repetition_penalty 1.2": ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.0}),
}


@pytest.mark.parametrize("named", OWN)
def test_a_run_with_settings_of_jax_is_answered_by_request(named: str, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Law: requests that change the settings are CTranslate2's; by name others are refused, and the server starts."""
    from starlette.testclient import TestClient

    from flaxformer_lite.tools.serve.app import make_app

    settings, changed = OWN[named]
    run = with_settings(write_random_decoder(tmp_path / "run"), **settings)
    (text,) = run.generate(["a"], **changed)
    for engine, fate, status in (("auto", "for jax", 200), ("ctranslate2", "refused", 422)):
        app = make_app({"run": run}, LIMITS, engine={"engine": engine, "weights_dtype": "float32"})
        told = capsys.readouterr().err
        assert f"run: engine ctranslate2, float32, and requests with {named}" in told and fate in told
        client, served = TestClient(app, base_url="http://localhost"), app.state.service.runs.by_name["run"]
        try:
            asked = {"model": "run", "prompt": "a", "max_tokens": 12}
            answer = client.post("/v1/completions", json={**asked, **changed})
            assert answer.json()["choices"][0]["text"] == text
            assert client.post("/v1/completions", json=asked).status_code == status
            job = served.generation_job(["a"], DecodingRequest(**changed))
            assert job.key.engine == "ctranslate2"
        finally:
            assert app.state.service.close(10)


def test_settings_that_no_request_changes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    run = with_settings(write_random_decoder(tmp_path / "run"), no_repeat_ngram=2, repetition_penalty=1.2)
    capsys.readouterr()
    served = ServedRun("run", run, LIMITS, {"engine": "auto", "weights_dtype": "float32"})
    told = capsys.readouterr().err
    assert "run: engine jax: CTranslate2 does not obey decode.no_repeat_ngram 2 as JAX does" in told
    assert "repetition_penalty" not in told and served.engine == {}
    assert not (tmp_path / "run" / "engine").exists()


def test_a_beam_whose_bans_are_obeyed_is_the_engines(tmp_path: Path, capsys: pytest.CaptureFixture):
    """The settings of an imported Marian: greedy search has obstacles that its own beams do not have."""
    settings = {"beam_size": 2, "renormalize": True, "suppress_ids": [0]}
    run = with_settings(write_random_run(tmp_path / "run"), **settings)
    served = ServedRun("run", run, LIMITS, {"engine": "auto", "weights_dtype": "float32"})
    assert "run: engine ctranslate2, float32\n" in capsys.readouterr().err
    assert served.translation_job(["a"]).key.engine == "ctranslate2"
    assert served.translation_job(["a"], beam_size=1).key.engine == "jax"
