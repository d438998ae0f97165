"""The server without a socket and without a model: shapes, limits, errors, tokens, hosts, clients that go."""

import asyncio
import base64
import contextlib
import dataclasses
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.objectives import AnswerSpans, Classification, TokenLabels
from flaxformer_lite.core.search.answers import Hypothesis
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.generation import truncate_at_stop
from flaxformer_lite.core.text import Languages, LanguageTokenizers
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.chats.chat import ChatTemplate
from flaxformer_lite.files.data import TSV
from flaxformer_lite.files.records import Classes
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import SentencePiece
from flaxformer_lite.run import Run, load
from flaxformer_lite.workdir.folder import RunFolder
from tests.support import needs
from tests.support.engine_runs import write_random_decoder
from tests.support.experiments import use_one_device
from tests.support.served import ENDLESS, FakeModel, as_run, runs
from tests.support.text_runs import of_tokens
from tests.support.tokenizers import NAMES, bytes_joined

pytest.importorskip("uvicorn", reason=f"uvicorn {needs.TEST_ALL}")
pytest.importorskip("httpx2", reason=f"httpx2 {needs.TEST_ALL}")
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.testclient import TestClient

from flaxformer_lite.tools.pages import policy_digest
from flaxformer_lite.tools.serve.app import make_app
from flaxformer_lite.tools.serve.chat_process import ChatProcess
from flaxformer_lite.tools.serve.guard import Guard
from flaxformer_lite.tools.serve.limits import Limits, Refusal
from flaxformer_lite.tools.serve.metrics import Metrics
from flaxformer_lite.tools.serve.requests import ChatRequest, CompletionRequest, DecodingRequest
from flaxformer_lite.tools.serve.runs import Key, ServedRun
from tests.support.toy_task import ASKED, PLACES, serve_it

LIMITS: dict[str, Any] = {"seconds": 20.0, "queue": 8, "texts": 4, "new_tokens": 64, "body_bytes": 4000}

MADE: list["Served"] = []
"""The applications of this file, which `all_end` closes."""


class Served:
    """An application with a client, and the model that answers it."""

    def __init__(self, runs: dict[str, Run], *, limits: dict[str, Any] | None = None, **options: Any) -> None:
        self.app = make_app(runs, Limits(**LIMITS | (limits or {})), **options)
        self.service = self.app.state.service
        self.model = self.service.worker.model = FakeModel(self.service.runs)
        self.client = TestClient(self.app, base_url="http://localhost", raise_server_exceptions=False)
        MADE.append(self)

    def post(self, path: str, body: Any, **headers: str) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body)
        return self.client.post(path, content=content, headers=headers)

    def answers(self, path: str, **body: Any) -> Any:
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()["answers"]

    def refused(self, path: str, body: Any, **headers: str) -> tuple[int, str]:
        response = self.post(path, body, **headers)
        error = response.json()["error"]
        assert list(error) == ["message", "type", "param", "code"]
        field = error["message"].partition(" is ")[0]
        assert not (isinstance(body, dict) and field in body) or error["param"] == field, (
            "a field with a wrong value is named for programs too"
        )
        return response.status_code, error["message"]


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        return runs(tmp_path_factory.mktemp("served"))


@pytest.fixture(autouse=True, scope="module")
def all_end() -> Iterator[None]:
    """Law: a closed application leaves neither a thread of its model nor a process of a chat template."""
    started, start = list["subprocess.Popen[bytes]"](), ChatProcess.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChatProcess, "start", lambda chat: started.append(start(chat)) or started[-1])
        yield
    for made in MADE:
        assert made.service.close(5)
    assert all(process.poll() is not None for process in started)


@pytest.fixture(scope="module")
def served(three_runs: dict[str, Run]) -> Served:
    return Served(three_runs)


def test_warming_up_uses_every_shape_that_requests_may_need(served: Served, monkeypatch: pytest.MonkeyPatch):
    """Worked by hand: at most 4 texts in a call, 20 source tokens, 60 prompt tokens and positions."""
    for name, shapes in (
        ("pairs", [(1, 8), (8, 8), (4, 8), (1, 16), (8, 16), (4, 16), (1, 20), (8, 20), (4, 20)]),
        ("documents", [(n, length) for length in (8, 16, 32, 60) for n in (1, 8, 4)]),
        ("texts", []),
    ):
        run, found, said = served.service.runs.by_name[name], [], []
        monkeypatch.setattr(
            Decoder, "compile", lambda _, params, rows, source, found=found: found.append((rows, len(source)))
        )
        run.warm_up(said.append)
        assert sorted(set(found)) == sorted({(8 if n == 4 else n, length) for n, length in shapes})
        assert len(said) == len(found)


def test_each_run_offers_what_it_can_do(served: Served):
    found = served.client.get("/api/runs").json()
    assert {run["name"]: (run["tasks"], run["chat"]) for run in found["runs"]} == {
        "pairs": (["translate"], False),
        "documents": (["generate", "translate"], True),
        "texts": (["fill-mask", "classify", "embed", "rank"], False),
    }
    assert found["limits"]["queue"] == 8


def test_what_a_translator_cannot_read_is_a_warning(served: Served):
    assert "warnings" not in served.post("/api/translate", {"texts": "abc"}).json()
    found = served.post("/api/translate", {"texts": ["日a", "本"]}).json()
    assert found["warnings"] == ["not in the vocabulary, so the model cannot read it: '日', '本'"]
    assert len(found["answers"]) == 2


def test_terms_and_beginnings_are_those_of_each_text(served: Served):
    """By hand: the ids that reach the model. A text whose translation cannot have them is refused in words."""
    encode = served.model.by_name["pairs"].run.tokenizers.target.encode
    served.answers("/api/translate", texts=["abc", "de"], prefix=["b", "cd"])
    assert [item.request.forced.beginning for item in served.model.calls[-1][1]] == [
        tuple(encode("b")),
        tuple(encode("cd")),
    ]
    for asked, message in (
        ({"terms": {"abc": "de"}}, "text 1 has a term or a placeholder that cannot be written"),
        ({"terms": {"abc": " "}}, "terms: 'abc' → '': neither text may be empty"),
        ({"prefix": "a" * 20}, "text 1 needs 21 tokens for the beginning of its answer"),
        ({"prefix": ["a", "b"]}, "there are 2 prefixes for 1 texts"),
    ):
        refused = served.post("/api/translate", {"texts": ["abc"], **asked})
        assert refused.status_code == 422 and message in refused.json()["error"]["message"], refused.json()


def test_the_servers_own_endpoints(served: Served):
    pairs = served.answers("/api/translate", texts=["abc", "de"], num_hypotheses=2, beam_size=2)
    assert [[answer["text"] for answer in text] for text in pairs] == [["cba", "cba1"], ["ed", "ed1"]]
    assert pairs[0][1] == {"text": "cba1", "score": -1.0, "finish": "stop"}
    assert served.answers("/api/translate", texts="abc") == [pairs[0][:1]]
    assert served.answers("/api/generate", texts="Once")[0][0]["text"] == "ecnO"
    key, _ = served.model.calls[-1]
    assert key.program.max_new_tokens == 12 and key.program.sampling is None
    served.answers("/api/fill-mask", texts=["a" * 15 + "[MASK]"])  # one token, not six characters
    masks = served.answers("/api/fill-mask", texts=["a[MASK]b[MASK]"], top=2)
    assert [[(c["id"], c["probability"]) for c in mask] for mask in masks[0]] == [[(0, 1 / 2), (1, 1 / 3)]] * 2
    scores = served.answers("/api/classify", texts=["a", ["b", "c"]])[1]["scores"]
    assert scores == pytest.approx({"0": 0.25, "1": 0.75, "2": 0.0}, abs=1e-6)
    assert served.answers("/api/embed", texts=["", "ab"])[1][0] == 2.0
    ranking = served.answers("/api/rank", query="a", candidates=["b", "abc", "d"])
    one, three = np.arange(6) + 1.0, np.arange(6) + 3.0
    cosine = one @ three / np.linalg.norm(one) / np.linalg.norm(three)
    assert [found["index"] for found in ranking] == [0, 2, 1]
    assert [found["score"] for found in ranking] == pytest.approx([1, 1, cosine])
    assert served.post("/api/attention", {"source": "ab", "target": "x"}).json()["columns"] == ["a", "b"]


def test_a_task_has_its_endpoint_without_code_of_the_server(
    three_runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
):
    """By hand: the request of a task with fields, its options, its answers as JSON, and each mistake at its place."""

    serve_it(monkeypatch)
    served, one = Served({"pairs": three_runs["pairs"], "texts": three_runs["texts"]}), {"word": "c", "text": "cd"}
    told = served.client.get("/api/runs").json()
    assert [run["tasks"] for run in told["runs"]] == [["translate"], ["fill-mask", "classify", "embed", "rank", "find"]]
    assert list(told["requests"]["find"]["properties"]) == ["run", "questions", "top"]
    assert served.answers("/api/find", questions=ASKED) == [PLACES[:2]]
    found = [PLACES, [{"found": "c", "start": 0, "share": 0.5}]]
    assert served.answers("/api/find", questions=[ASKED, one], top=3, run="texts") == found
    for asked, status, words in (
        ({"questions": "a"}, 422, "questions: Input should be an object or Input should be a valid array"),
        ({"questions": [one, "a"]}, 422, "questions.1: Input should be an object"),
        ({"questions": [one, {"word": 3, "text": "a"}]}, 422, "questions.1.word: Input should be a valid string"),
        ({"questions": {"word": "a"}}, 422, "questions.text: Field required"),
        ({"questions": [one | {"more": 1}]}, 422, "questions.0.more is not supported: leave it out"),
        ({"questions": one, "top": 10}, 422, "top: Input should be less than or equal to 9"),
        ({"questions": one, "tops": 1}, 422, "tops is not supported: leave it out; perhaps you meant top"),
        ({}, 422, "questions: Field required"),
        ({"questions": []}, 422, "there is no text: send at least one"),
        ({"questions": [one] * 5}, 413, "there are 5 texts: send at most 4 in a request"),
        ({"questions": [one, one | {"word": ""}]}, 422, "text 2 has no word: write one"),
        ({"questions": [one, one | {"word": "a" * 19}]}, 413, "text 2 has 24 tokens, but texts reads at most 20: shorten it"),
    ):  # fmt: skip
        assert served.refused("/api/find", asked) == (status, words)
    status, words = served.refused("/api/find", {"run": "pairs", "questions": one})
    assert status == 404 and words.startswith("pairs does not find: ") and "find at /api/find" in words


def test_attention_is_of_every_family(served: Served):
    """Law: an encoder alone takes no target, and answers unnamed requests without one; the others need one."""
    for run, target in (("pairs", "ab"), ("documents", " time"), ("texts", None)):
        asked = {"source": "ab", "target": target}
        for body in (asked | {"run": run}, {name: value for name, value in asked.items() if value is not None}):
            if "run" in body or run != "documents":
                read = {"documents": "ab time", "texts": ""}.get(run, target)
                assert served.post("/api/attention", body).json()["answer"] == read
                assert served.model.calls[-1][0].run == run


def test_settings_reach_the_decoder_and_lengths_share_programs(served: Served):
    asked = {"texts": ["Once"], "temperature": 0.5, "top_k": 7, "seed": 3, "stop": ["."], "max_new_tokens": 20}
    served.answers("/api/generate", **asked, num_hypotheses=2)
    key, (prompt,) = served.model.calls[-1]
    request, settings = prompt.request, prompt.request.settings
    assert (request.limit, request.seed, prompt.stop) == (20, 3, (".",))
    assert (settings.sampling.temperature, settings.sampling.top_k, settings.num_hypotheses) == (0.5, 7, 2)
    assert settings.max_new_tokens == 32
    served.answers("/api/generate", **{**asked, "max_new_tokens": 30, "num_hypotheses": 2})
    assert served.model.calls[-1][0] == key
    served.answers("/api/generate", texts=["Once"], max_new_tokens=5)
    assert served.model.calls[-1][0].program.max_new_tokens == 12
    served.answers("/api/generate", texts=["Once"], num_hypotheses=2)
    assert served.model.calls[-1][1][0].request.settings.sampling.temperature == 1.0


def test_requests_that_differ_in_numbers_of_sampling_share_a_call(served: Served):
    """Law: temperature, top_p, min_p and the number of samples do not change the key; a temperature of 0 is the greedy search."""
    keys = []
    for asked in ({"temperature": 0.3}, {"top_p": 0.5, "min_p": 0.1, "num_hypotheses": 2}, {"temperature": 0}, {}):
        served.answers("/api/generate", texts=["Once"], **asked)
        keys.append(served.model.calls[-1][0])
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_a_request_names_its_direction(three_runs: dict[str, Run]) -> None:
    """Its source has the tokens of the languages, and its settings the one that is forced; the page gets the languages."""
    run, languages = three_runs["pairs"], Languages(codes=("a", "b", "c"))
    data = dataclasses.replace(run.config.data, languages=languages)
    tokenizers = LanguageTokenizers.of(run.required_tokenizers, languages)
    several = dataclasses.replace(run, tokenizers=tokenizers, config=dataclasses.replace(run.config, data=data))
    served = Served({"several": several, "one": run, "documents": three_runs["documents"]})
    a, b, d = (tokenizers.target.encode(letter)[0] for letter in "abd")
    served.answers("/api/translate", run="several", texts="d", **{"from": "a", "to": "b"})
    (item,) = served.model.calls[-1][1]
    asked = item.request
    assert asked.source == [a, d, tokenizers.source.eos_id] and asked.settings.forced_bos_id == b
    for body, message in (
        ({"run": "several", "from": "a", "to": "x"}, "to is 'x', which is not one of this run's 3 languages"),
        ({"run": "several"}, "from is missing"),
        ({"run": "one", "to": "b"}, "translates in one direction"),
    ):
        status, found = served.refused("/api/translate", body | {"texts": "d"})
        assert status == 422 and message in found
        status, found = served.refused("/api/attention", body | {"source": "d", "target": "d"})
        assert status == 422 and message in found
    served.post("/api/attention", {"run": "several", "source": "d", "target": "b", "from": "a", "to": "b"})
    ((_, ids),) = served.model.calls[-1][1]
    assert (ids.sources, ids.targets) == (asked.source, [several.config.decode.start_id, b, b])
    told = {
        one["name"]: (one["languages"], one["named_languages"]) for one in served.client.get("/api/runs").json()["runs"]
    }
    assert told["one"] == (None, None) and told["several"][0]["codes"] == ["a", "b", "c"]
    assert told["documents"] == (None, {"to": ""})


def test_a_run_with_more_beams_than_a_request_may_ask_for_still_translates(three_runs: dict[str, Run]):
    """Law: the limit is on what requests ask for, not on the run's own settings."""
    run = three_runs["pairs"]
    wide = dataclasses.replace(run.config.decode, beam_size=20)
    served = Served({"pairs": dataclasses.replace(run, config=dataclasses.replace(run.config, decode=wide))})
    for asked in ({}, {"n": 2}):
        assert served.post("/v1/completions", {"model": "pairs", "prompt": "abc", **asked}).status_code == 200
        assert served.model.calls[-1][0].program.beam_size == 20


def events(response: Any) -> list[Any]:
    """Returns the contents of server-sent events; the last is the text [DONE] in OpenAI's interface."""
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [part if part == "[DONE]" else json.loads(part) for part in data]


def test_streams_are_the_whole_answer_in_parts(served: Served):
    own = events(served.post("/api/generate", {"texts": "Once upon", "stream": True}))
    assert [part["text"] for part in own] == ["nopu", " ecn", "O", "nopu ecnO"]
    asked = {"model": "documents", "prompt": "Once upon", "stream": True, "stream_options": {"include_usage": True}}
    parts = events(served.post("/v1/completions", asked))
    assert "".join(part["choices"][0]["text"] for part in parts[:-2]) == "nopu ecnO"
    assert [part["choices"][0]["finish_reason"] for part in parts[:-2]] == [None] * 3 + ["stop"]
    assert parts[-2]["usage"]["completion_tokens"] == 9 and parts[-1] == "[DONE]"
    asked = {"model": "documents", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    parts = events(served.post("/v1/chat/completions", asked))
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert parts[-2]["choices"][0]["finish_reason"] == "stop"
    for body in ({"texts": ["a", "b"], "stream": True}, {"texts": "a", "num_hypotheses": 2, "stream": True}):
        assert served.refused("/api/generate", body)[0] == 422


def test_usage_with_a_stop_string_is_the_same_whole_and_streamed(three_runs: dict[str, Run]):
    """Law: text, tokens and the reason of the end do not depend on how an answer is sent; a stop string's tokens count."""
    run = ServedRun("documents", three_runs["documents"], Limits())
    (free,) = run.decode(*decode_arguments(run, []))[0]
    for stop in ([free.text[1]], [free.text[4:6]], ["nowhere"], []):
        program, items = decode_arguments(run, stop)
        (whole,), stream = run.decode(program, items)[0], run.stream(Key("documents", "generate", program), items[0])
        with pytest.raises(StopIteration) as ended:
            [next(stream) for _ in range(free.num_tokens + 2)]
        assert ended.value.value == whole._replace(score=0.0)
        assert whole.text == truncate_at_stop(free.text, stop)
        assert (whole.num_tokens < free.num_tokens) == (whole.finish == "stop") == (whole.text != free.text)


def test_an_answer_in_a_chat_begins_a_text(three_runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch):
    """Law: the tokens that SentencePiece makes of an answer are that answer, whole and streamed; a continuation has its space."""
    pieces = SentencePiece().train(["to be or not to be", "that is the question"], 60)
    changed = dataclasses.replace(three_runs["documents"], tokenizers=Tokenizers(pieces, pieces))
    run, ids = ServedRun("documents", changed, Limits()), pieces.encode("to be")
    monkeypatch.setattr(Decoder, "stream", lambda *_, **__: iter([ids]))
    chat = ChatRequest(model="documents", messages=[{"role": "user", "content": "be"}])  # type: ignore[list-item]
    continued = chat.model_copy(update={"continue_final_message": True})
    completion = CompletionRequest(model="documents", prompt="be")
    for asked, text in ((chat, "to be"), (continued, " to be"), (completion, " to be")):
        job = run.generation_job([pieces.encode("be")], asked)
        program, (item,) = job.key.program, job.items
        assert run.as_answer(run.decoder(program), item, Hypothesis(ids, 0.0)).text == text
        assert "".join(run.stream(Key("documents", "generate", program), item)) == text


def decode_arguments(run: Any, stop: list[str]) -> Any:
    job = run.generation_job(["Once upon"], DecodingRequest(stop=stop))
    return job.key.program, job.items


def test_openai_shapes(served: Served):
    names = [card["id"] for card in served.client.get("/v1/models").json()["data"]]
    assert names == ["pairs", "documents", "texts"]
    assert served.client.get("/v1/models/pairs").json()["object"] == "model"
    whole = served.post("/v1/completions", {"model": "documents", "prompt": ["ab", "c"], "n": 2}).json()
    assert [choice["text"] for choice in whole["choices"]] == ["ba", "ba1", "c", "c1"]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}  # with two BOS
    translated = served.post("/v1/completions", {"model": "pairs", "prompt": "abc", "n": 2}).json()
    assert [choice["text"] for choice in translated["choices"]] == ["cba", "cba1"]
    messages = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    chat = served.post("/v1/chat/completions", {"model": "documents", "messages": messages}).json()
    assert chat["choices"][0]["message"]["content"] == "[user] Hi\n[assistant] "[::-1]
    for encoding in ("float", "base64"):
        asked = {"model": "texts", "input": ["ab", "c"], "encoding_format": encoding}
        vector = served.post("/v1/embeddings", asked).json()["data"][1]["embedding"]
        if encoding == "base64":
            vector = np.frombuffer(base64.b64decode(vector), "<f4").tolist()
        assert vector == [1, 2, 3, 4, 5, 6]
    short = served.post("/v1/embeddings", {"model": "texts", "input": ["ab"], "dimensions": 2}).json()
    own = served.answers("/api/embed", texts=["ab"], width=2)
    assert len(own[0]) == 2 and own[0] == short["data"][0]["embedding"] and np.hypot(*own[0]) == pytest.approx(1)


def test_what_a_template_reads_comes_from_the_request(served: Served, monkeypatch: pytest.MonkeyPatch):
    """Worked by hand; the model answers with the prompt backwards."""
    source = "{% for m in messages %}{{ m.name }}[{{ m.content }}]{% endfor %}{{ documents[0].text if documents }}"
    source += "{{ add_generation_prompt }}"
    monkeypatch.setattr(served.service.runs.by_name["documents"].chat, "template", ChatTemplate(source, {}))
    messages = [{"role": "user", "content": "a", "name": "Ada"}, {"role": "assistant", "content": "bc"}]
    for options, prompt in (
        ({"documents": [{"text": "t"}]}, "Ada[a][bc]tTrue"),
        ({"documents": [{"text": "t"}], "add_generation_prompt": False}, "Ada[a][bc]tFalse"),
        ({"continue_final_message": True}, "Ada[a][bc"),
    ):
        asked = {"model": "documents", "messages": messages, **options}
        found = served.post("/v1/chat/completions", asked).json()
        assert found["choices"][0]["message"]["content"] == prompt[::-1], found
    both = {"continue_final_message": True, "add_generation_prompt": True}
    refusal = served.refused("/v1/chat/completions", {"model": "documents", "messages": messages, **both})
    assert refusal[0] == 422 and "are both true: leave one of them out" in refusal[1]


def test_a_client_sends_back_what_it_got(served: Served):
    """Law: a message that the server wrote, with all fields that a client adds to it, is read in the next turn; so is a null."""
    first = served.post("/v1/chat/completions", HI).json()["choices"][0]["message"]
    added = dict.fromkeys(("audio", "function_call", "tool_calls", "annotations", "reasoning_content"))
    for more in ({}, added, added | {"annotations": [{"type": "url_citation"}]}):
        messages = [first | more, USER]
        asked = HI | {"messages": messages, "tools": [], "logprobs": False, "logit_bias": {}, "presence_penalty": 0}
        answer = served.post("/v1/chat/completions", asked).json()
        assert "choices" in answer, answer
        found = answer["choices"][0]["message"]["content"]
        assert found == f"[assistant] {first['content']}\n[user] hi\n[assistant] "[::-1]
    tool = HI | {"messages": [{"role": "tool", "content": "5", "tool_call_id": "1"}, USER]}
    assert served.post("/v1/chat/completions", tool).status_code == 200


@pytest.mark.slow
def test_a_stuck_template_holds_up_nothing_but_itself(three_runs: dict[str, Run]):
    """Law: while templates without end are rendered, the server, the run and the chats of another run answer."""
    served = Served(three_runs | {"other": three_runs["documents"]}, limits={"seconds": 3.0})
    served.service.runs.by_name["documents"].chat.template = ChatTemplate(ENDLESS, {})
    asked = {"model": "documents", "messages": [{"role": "user", "content": "hi"}]}
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(served.refused("/v1/chat/completions", asked)[0]))
        for _ in range(9)
    ]
    for thread in threads:
        thread.start()
    assert served.client.get("/health").status_code == 200
    assert served.answers("/api/generate", texts="Once", run="documents")[0][0]["text"] == "ecnO"
    assert served.post("/v1/chat/completions", asked | {"model": "other"}).status_code == 200
    assert any(thread.is_alive() for thread in threads)
    for thread in threads:
        thread.join()
    assert set(found) <= {422, 504} and 504 in found and len(found) == 9
    assert served.service.close(5)


def test_a_template_that_cannot_be_compiled_is_said_at_the_start(
    three_runs: dict[str, Run], tmp_path: Path, capfd: pytest.CaptureFixture
):
    run = three_runs["documents"]
    (tmp_path / "chat_template.jinja").write_text("a\n{% if %}")
    served = Served({"documents": dataclasses.replace(run, folder=RunFolder(tmp_path))})
    line = f"warning: {tmp_path} has no chat: the chat template cannot be compiled: line 2: Expected an expression"
    assert capfd.readouterr().err.startswith(line)
    assert served.client.get("/api/runs").json()["runs"][0]["chat"] is False
    asked = {"model": "documents", "messages": [{"role": "user", "content": "hi"}]}
    assert served.refused("/v1/chat/completions", asked) == (
        404,
        "documents has no chat template that can be used: try /v1/completions",
    )


def test_a_task_of_no_run_is_refused_with_what_the_runs_do(three_runs: dict[str, Run]):
    alone = Served({"pairs": three_runs["pairs"]})
    for path, body in (
        ("/api/generate", {"texts": "a"}),
        ("/v1/chat/completions", {"model": "pairs", "messages": [USER]}),
    ):
        status, message = alone.refused(path, body)
        assert status == 404 and message.startswith(("no run here can generate", "pairs does not generate"))
        assert "pairs: translate at /api/translate or /v1/completions" in message


@pytest.fixture(scope="module")
def of_tokens_alone(three_runs: dict[str, Run]) -> dict[str, Served]:
    """Servers of a run that labels words, and of one that finds answers."""
    objectives = {"words": TokenLabels(labels=("O", "B-A", "I-A")), "places": AnswerSpans()}
    configs = {name: of_tokens(three_runs["texts"].config, one) for name, one in objectives.items()}
    return {name: Served({name: dataclasses.replace(three_runs["texts"], config=one)}) for name, one in configs.items()}


def test_words_are_labelled_in_texts_of_any_length(of_tokens_alone: dict[str, Served]):
    """Law: a text may have 64 lengths of a training text, 20 tokens each; words are one text."""
    alone = of_tokens_alone["words"]
    assert alone.client.get("/api/runs").json()["runs"][0]["tasks"] == ["label"]
    whole, words = alone.answers("/api/label", texts=["ab", ["a", "b"]])
    assert whole["text"] == "ab" and words["text"] == "a b"
    assert whole["words"] == [{"start": 0, "end": 2, "label": "B-A", "score": pytest.approx(0.75)}]
    assert [(one["start"], one["end"], one["label"]) for one in words["spans"]] == [(0, 1, "A"), (2, 3, "A")]
    assert alone.answers("/api/label", texts="a" * (64 * 20 - 2))[0]["words"][0]["end"] == 64 * 20 - 2
    status, words = alone.refused("/api/label", {"texts": ["a", "b" * (64 * 20)]})
    assert (status, words) == (413, "text 2 has 1282 tokens, but words reads at most 1280: shorten it")
    assert alone.refused("/api/label", {"texts": [["a", 3]]})[0] == 422


def test_questions_are_answered_from_their_texts(of_tokens_alone: dict[str, Served]):
    """By the task alone: all logits of the double are equal, so the first token is the best of all answers."""
    alone = of_tokens_alone["places"]
    assert alone.client.get("/api/runs").json()["runs"][0]["tasks"] == ["answer"]
    asked = {"question": "a", "context": "cba"}
    found = {"answer": "c", "start": 0, "stop": 1, "score": pytest.approx(1 / 6)}
    assert alone.answers("/api/answer", questions=asked) == [found]
    assert alone.answers("/api/answer", questions=[asked, asked]) == [found, found]


def test_a_classifier_of_single_texts_refuses_pairs_and_masks_in_terms_of_the_request(three_runs: dict[str, Run]):
    config = three_runs["texts"].config
    train = TSV(path="nowhere", record=Classes(text=0, label=1))
    data, model = dataclasses.replace(config.data, train=train), dataclasses.replace(config.model, head=None)
    config = dataclasses.replace(config, data=data, model=model, objective=Classification(classes=("a", "b", "c")))
    alone = Served({"classes": dataclasses.replace(three_runs["texts"], config=config)})
    pair, mask = {"texts": ["a", ["a", "b"]]}, {"source": "a[MASK]"}
    words = "text 2 has two texts, but this run was trained on single texts: give one"
    assert alone.refused("/api/classify", pair) == (422, words)
    words = "the source has [MASK], but classes predicts no masks: leave it out"
    assert alone.refused("/api/attention", mask) == (422, words)


USER = {"role": "user", "content": "hi"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f"}}]}
HI: dict[str, Any] = {"model": "documents", "messages": [USER]}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "/api/translate": ("pairs", {"texts": ["a"]}),
    "/api/generate": ("documents", {"texts": ["a"]}),
    "/api/fill-mask": ("texts", {"texts": ["a[MASK]"]}),
    "/api/classify": ("texts", {"texts": ["a", ["a", "b"]]}),
    "/api/label": ("words", {"texts": ["a", ["a", "b"]]}),
    "/api/answer": ("places", {"questions": [{"question": "a", "context": "b"}]}),
    "/api/embed": ("texts", {"texts": ["a"]}),
    "/api/rank": ("texts", {"query": "a", "candidates": ["b"]}),
    "/api/attention": ("pairs", {"source": "a", "target": "b"}),
    "/v1/completions": ("documents", {"model": "documents", "prompt": ["a"]}),
    "/v1/chat/completions": ("documents", HI),
    "/v1/embeddings": ("texts", {"model": "texts", "input": ["a"]}),
}
"""For each endpoint a run that answers it, and a request with all its fields that are needed: a new one is a row."""


def test_each_endpoint_has_a_request_here(served: Served):
    posted = {route.path for route in served.app.routes if isinstance(route, Route) and "POST" in (route.methods or ())}
    assert posted == BODIES.keys()


@pytest.mark.parametrize("path", BODIES)
def test_what_holds_for_every_endpoint(served: Served, of_tokens_alone: dict[str, Served], path: str):
    """Law: a request is answered; each mistake in it has its status, and the field or the remedy in its message."""
    name, body = BODIES[path]
    served = of_tokens_alone.get(name, served)
    assert served.post(path, body).status_code == 200
    found = served.client.get(path)
    assert (found.status_code, found.headers["Allow"]) == (405, "POST")
    assert found.json()["error"]["message"] == f"GET {path}: Method Not Allowed: use POST"
    status, said = served.refused(path, b"{")
    assert status == 400 and "no JSON" in said
    assert served.refused(path, body | {"qqq": 3}) == (422, "qqq is not supported: leave it out")
    status, said = served.refused(path, body | {"model" if "model" in body else "run": "other"})
    assert status == 404 and f"there is no run 'other': there are {', '.join(served.service.runs.by_name)}" in said
    assert served.refused(path, body | {"user" if "model" in body else "run": "a" * 5000})[0] == 413
    for field, value in body.items():
        without = {name: value for name, value in body.items() if name != field}
        if field != "target":  # which an encoder alone does not have
            assert served.refused(path, without) == (422, f"{field}: Field required")
        status, said = served.refused(path, body | {field: 3})
        assert status == 422 and said.startswith(f"{field}: Input should be a")
        if isinstance(value, list):
            status, said = served.refused(path, body | {field: []})
            assert status == 422 and ("send at least one" in said or "at least 1 item" in said), said
            status, said = served.refused(path, body | {field: value[:1] * 5})
            assert field == "messages" or (status == 413 and "at most 4" in said), said


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/translate", {"texts": [1]}, 422, "texts"),
        ("/api/translate", {"texts": "a", "tokens": 1}, 422, "leave it out; perhaps you meant max_new_tokens"),
        ("/api/translate", {"texts": "a", "beam": 3}, 422, "beam is not supported: leave it out; perhaps you meant beam_size"),
        ("/api/translate", {"texts": ["a", "b" * 20]}, 413, "text 2 has 20 tokens, but pairs reads at most 19"),
        ("/api/translate", {"texts": "a" * 5000}, 413, "more than 4,000 bytes: send fewer or shorter texts"),
        ("/api/translate", {"texts": "a", "beam_size": 17}, 422, "at most 16"),
        ("/api/translate", {"texts": "a", "num_hypotheses": 2}, 422, "num_hypotheses is 2 but beam_size is 1"),
        ("/api/translate", {"texts": "a", "run": "texts"}, 404, "texts does not translate"),
        ("/api/generate", {"texts": "a", "max_new_tokens": 65}, 422, "at most 64"),
        ("/api/generate", {"texts": "a", "temperature": -1}, 422, "temperature"),
        ("/api/generate", {"texts": "a", "stop": ""}, 422, "stop"),
        ("/api/generate", {"texts": "a" * 60}, 413, "reads at most 60"),
        ("/api/generate", {"texts": [1, 263]}, 422, "outside the vocabulary"),
        ("/api/generate", {"texts": "a", "num_hypotheses": 17}, 422, "at most 16"),
        ("/api/translate", {"texts": "a", "num_hypotheses": 17}, 422, "num_hypotheses is 17: this server allows at most 16"),
        ("/api/fill-mask", {"texts": "abc"}, 422, "text 1 has no mask"),
        ("/api/embed", {"texts": "a" * 30}, 413, "reads at most 20"),
        ("/api/attention", {"source": "a", "run": "pairs"}, 422, "pairs has a decoder: send the target"),
        ("/api/attention", {"source": "a", "run": "texts", "target": "b"}, 422, "texts has no decoder: leave out the target"),
        ("/api/attention", {"source": "a" * 20, "target": "b"}, 413, "has 20 tokens, but pairs reads at most 19"),
        ("/api/attention", {"source": "a" * 40, "target": "b" * 20, "run": "documents"}, 413, "reads at most 60"),
        ("/api/attention", {"source": "a" * 20}, 413, "texts reads at most 20"),
        ("/api/nothing", {}, 404, "Not Found"),
        ("/api/runs", {}, 405, "POST /api/runs: Method Not Allowed: use GET"),
        ("/v1/completions", {"model": "documents", "prompt": "a", "logprobs": 1}, 422, "logprobs"),
        ("/v1/completions", {"model": "pairs", "prompt": "a", "temperature": 1.0}, 422, "pairs translates"),
        ("/v1/completions", {"model": "pairs", "prompt": [3, 4]}, 422, "not token ids"),
        ("/v1/completions", {"model": "pairs", "prompt": "a", "n": 17}, 422, "n is 17: this server allows at most 16"),
        ("/v1/completions", {"model": "documents", "prompt": "a", "n": 17}, 422, "n is 17: this server allows at most 16"),
        ("/v1/chat/completions", {"model": "pairs", "messages": [USER]}, 404, "pairs does not generate: send to a path"),
        ("/v1/chat/completions", HI | {"tools": [{}]}, 422, "tools: it is not supported: leave it out"),
        ("/v1/chat/completions", HI | {"logprobs": True}, 422, "logprobs: it is not supported: leave it out"),
        ("/v1/chat/completions", HI | {"logit_bias": {"1": 2}}, 422, "logit_bias: it is not supported: leave it out"),
        ("/v1/chat/completions", HI | {"presence_penalty": 1}, 422, "presence_penalty: it is not supported: leave it out"),
        ("/v1/chat/completions", HI | {"stream": True, "n": 2}, 422, "2 answers are asked for, and one is streamed: ask for one"),
        ("/v1/chat/completions", HI | {"documents": [{"text": "t"}]}, 422, "reads no documents: leave them out"),
        ("/v1/chat/completions", HI | {"messages": [{"role": "user", "content": 3}]}, 422, "messages: the content of message 1"),
        ("/v1/chat/completions", HI | {"messages": [USER | {"mood": 1}]}, 422, "leaves out the field 'mood' of messages"),
        ("/v1/chat/completions", HI | {"messages": [USER, CALLING]}, 422, "leaves out the call of 'f' in message 2"),
        ("/v1/completions", {"model": "documents", "prompt": ["a", "b"], "stream": True}, 422, "there are 2 prompts"),
        ("/v1/completions", {"model": "documents", "prompt": "a", "from": "de"}, 422, "to is missing"),
        ("/v1/completions", {"model": "texts", "prompt": "a", "from": "de"}, 422, "texts does not translate: leave out"),
        ("/v1/completions", {"model": "pairs", "prompt": "a", "from": "de", "to": "en"}, 422, "data.languages"),
        ("/v1/chat/completions", HI | {"messages": [{"role": "system", "content": "a"}]}, 422, "these messages: no system"),
        ("/v1/embeddings", {"model": "texts", "input": "a", "dimensions": 7}, 422, "is 7, but vectors have 6"),
        ("/api/embed", {"texts": "a", "width": 7}, 422, "is 7, but vectors have 6 values: choose 1 to 6"),
        ("/api/embed", {"texts": "a", "prompt": "query"}, 422, "the prompt is 'query', but objective.kind"),
    ],
)  # fmt: skip
def test_a_mistake_has_its_status_and_one_readable_message(
    served: Served, path: str, body: Any, status: int, words: str
):
    found, message = served.refused(path, body)
    assert found == status and words in message and "\n" not in message


def test_hosts_and_pages_of_strangers_are_refused(three_runs: dict[str, Run]):
    served = Served(three_runs, hosts=("localhost", "127.0.0.1", "::1"), token="0123456789abcdef")
    get, bearer = served.client.get, {"authorization": "Bearer 0123456789abcdef"}
    for host, status in (
        ("localhost:8000", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("localhost.evil", 403),
        ("[", 403),
    ):
        assert get("/health", headers={"host": host}).status_code == status, host
    for origin, status in (("http://localhost", 200), ("https://evil.example", 403), ("null", 403)):
        assert get("/api/runs", headers=bearer | {"origin": origin}).status_code == status, origin
    assert get("/").status_code == get("/health").status_code == 200
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "0123456789abcdef"},
        {"authorization": "Bearer é"},
    ):
        refused = get("/metrics", headers={name: value.encode() for name, value in headers.items()})
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
    assert b'path="other",status="404"' not in get("/metrics", headers=bearer).content
    assert get("/wp-login.php", headers=bearer).status_code == 404
    assert b'path="other",status="404"' in get("/metrics", headers=bearer).content


@pytest.mark.parametrize(
    ("host", "headers", "own"),
    [
        ("localhost:8000", {"origin": "http://localhost:8000"}, True),
        ("[::1]:8000", {"origin": "http://[::1]:8000"}, True),
        ("localhost", {"origin": "http://localhost"}, True),
        ("proxy.example", {"origin": "https://proxy.example"}, True),
        ("127.0.0.1:8000", {"origin": "https://proxy.example", "sec-fetch-site": "same-origin"}, True),
        ("localhost:8000", {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, False),
        ("localhost:8000", {"origin": "http://127.0.0.1:3000", "sec-fetch-site": "cross-site"}, False),
        ("localhost:8000", {"origin": "http://localhost"}, False),
        ("localhost:8000", {"origin": "null"}, False),
        ("proxy.example", {"origin": "https://proxy.example:3000"}, False),
        ("proxy.example", {"origin": "http://localhost:3000"}, False),
    ],
)
def test_a_page_is_the_servers_own_as_the_browser_says(host: str, headers: dict[str, str], own: bool):
    """Law: a page's origin is the Host header's (RFC 6454, section 5), or the browser says so (Fetch Metadata)."""

    async def app(*arguments: Any) -> None: ...

    guard = Guard(
        app, token=None, hosts=("127.0.0.1", "localhost", "::1", "proxy.example"), paths=["/"], metrics=Metrics()
    )
    with contextlib.nullcontext() if own else pytest.raises(Refusal, match="is not this server") as caught:
        guard.check("/", Headers({"host": host, **headers}))
    assert own or caught.value.status == 403


def test_a_full_queue_and_a_late_answer_have_their_status_and_free_their_places(three_runs: dict[str, Run]):
    """While the model is busy, texts beyond the queue get 429 and those in it 504; nothing stays behind."""
    served = Served(three_runs, limits={"seconds": 2.0})
    begun, go, answer = threading.Event(), threading.Event(), served.model.answer

    def slow_answer(key: Any, items: Any) -> Any:
        begun.set()
        return go.wait(20) and answer(key, items)

    served.model.answer = slow_answer  # type: ignore[method-assign]
    found: list[int] = []

    def ask() -> None:
        found.append(served.post("/api/embed", {"texts": ["a"] * 4}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread, waiting in zip(threads, (0, 4, 8, 8, 8), strict=True):
        thread.start()
        assert begun.wait(20)  # the first is with the model
        while not found and served.service.worker.num_waiting < waiting:
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert sorted(found) == [429, 429, 504, 504, 504]
    assert served.service.worker.num_waiting == 0
    go.set()
    assert served.post("/api/embed", {"texts": "a"}).status_code == 200
    served.service.close(5)
    assert served.refused("/api/embed", {"texts": "a"})[0] == 503


def test_a_client_that_goes_frees_its_place(three_runs: dict[str, Run]):
    """Oracle: the ASGI interface: a request whose `receive` reports the disconnect, while the model is busy."""
    served = Served(three_runs)
    begun, go, answer = threading.Event(), threading.Event(), served.model.answer

    def slow_answer(key: Any, items: Any) -> Any:
        begun.set()
        assert go.wait(20)
        return answer(key, items)

    served.model.answer = slow_answer  # type: ignore[method-assign]
    body = json.dumps({"texts": ["a", "b"]}).encode()

    async def ask(goes_after: float) -> list[Any]:
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])
        sent: list[Any] = []

        async def receive() -> Any:
            for message in messages:
                return message
            await asyncio.sleep(goes_after)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/api/embed", "headers": [], "query_string": b""}
        await served.app(scope, receive, send)
        return sent

    async def both() -> int:
        computed = asyncio.ensure_future(ask(5))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        waiting = asyncio.ensure_future(ask(0.3))
        await asyncio.sleep(0.2)
        queued = served.service.worker.num_waiting
        sent = await waiting
        assert sent[0]["status"] == 499 and served.service.worker.num_waiting == 0
        go.set()
        assert (await computed)[0]["status"] == 200
        return queued

    assert asyncio.run(both()) == 2
    assert len(served.model.calls) == 1


def test_the_models_failure_is_a_500_without_its_text(served: Served, monkeypatch: pytest.MonkeyPatch):
    def fail(key: Any, items: Any) -> Any:
        raise RuntimeError("secret path")

    monkeypatch.setattr(served.model, "answer", fail)
    status, message = served.refused("/api/embed", {"texts": "a"})
    assert status == 500 and "secret" not in message
    response = served.post("/api/generate", {"texts": "a", "stream": True})
    assert response.status_code == 500
    assert 'path="/api/embed",status="500"' in served.client.get("/metrics").text


def test_a_stream_that_fails_ends_with_an_error_in_openais_shape(served: Served, monkeypatch: pytest.MonkeyPatch):
    def broken(key: Any, item: Any) -> Iterator[str]:
        yield "On"
        raise RuntimeError("secret path")

    monkeypatch.setattr(served.model, "stream", broken)
    asked = {"model": "documents", "prompt": "a", "stream": True}
    first, last = events(served.post("/v1/completions", asked))
    message = "the server could not answer: its log tells why"
    assert first["choices"][0]["text"] == "On"
    assert last == {"error": {"message": message, "type": "server_error", "param": None, "code": None}}


def test_the_last_line_counts_how_requests_ended():
    metrics = Metrics()
    assert metrics.summary() == "requests: none"
    for path, status, count in (
        ("/api/embed", 200, 1201), ("/v1/chat/completions", 200, 2), ("/api/embed", 422, 3),
        ("/api/embed", 504, 4), ("/api/embed", 499, 5), ("/health", 200, 6),
    ):  # fmt: skip
        for _ in range(count):
            metrics.observe_request(path, status, 0.1)
    assert metrics.summary() == "requests: 1,203 answered, 3 refused, 4 failed, 5 left by their clients or cut off"


def test_the_page_is_whole_and_runs_no_other_script(served: Served):
    response = served.client.get("/")
    policy, text = response.headers["content-security-policy"], response.text
    script, style = (text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0] for tag in ("script", "style"))
    assert f"script-src '{policy_digest(script)}'" in policy and f"style-src '{policy_digest(style)}'" in policy
    assert "default-src 'none'" in policy and "http" not in text.replace("http-equiv", "")
    assert "innerHTML" not in script and "/*" not in text


def test_a_source_with_two_special_ids_has_room_for_one_token_less(three_runs: dict[str, Run], tmp_path: Path):
    tokenizer = JsonTokenizer.of(bytes_joined().to_str(), NAMES)
    config = three_runs["pairs"].config
    model = dataclasses.replace(config.model, vocab_size=300, positions=Learned(max_positions=20))
    served = Served({"pairs": as_run(dataclasses.replace(config, model=model), tokenizer, tmp_path)})
    assert len(served.answers("/api/translate", texts="a" * 18)) == 1
    for path, body in (("translate", {"texts": "a" * 19}), ("attention", {"source": "a" * 19, "target": "b"})):
        status, message = served.refused(f"/api/{path}", body)
        assert status == 413 and "has 19 tokens, but pairs reads at most 18" in message


@pytest.mark.slow
def test_a_server_keeps_few_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: the programs of the settings that were used last are kept, and those of others are freed."""
    monkeypatch.setattr("flaxformer_lite.tools.serve.runs.MOST_PROGRAMS", 5)
    run = load(write_random_decoder(tmp_path / "run"))
    served = ServedRun("run", run, Limits())

    def answer(top_k: int) -> str:
        job = served.generation_job([[7]], DecodingRequest(top_k=top_k, temperature=1.0, seed=1), max_new_tokens=1)
        ((written,),) = served.answer(job.key, job.items)
        return str(written.text)

    texts, of_each = [], dict[int, Any]()
    for top_k in (5, 6, 5, 7, 8):
        texts.append(answer(top_k))
        of_each[top_k] = [*run.kept.decoders.values()][-1]
    freed = [top_k for top_k, decoder in of_each.items() if not decoder.num_programs]
    assert freed == [6], {top_k: decoder.num_programs for top_k, decoder in of_each.items()}
    assert texts[0] == texts[2] and answer(6) == texts[1]
