"""A server whose translations CTranslate2 makes. Oracle: the run in JAX."""

from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.run import load
from flaxformer_lite.tools.serve.limits import Limits
from tests.support import needs
from tests.support.engine_runs import LINES, write_random_run

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
