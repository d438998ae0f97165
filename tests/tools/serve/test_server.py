"""A real server on a real socket: OpenAI's own client, the answers of the run, SIGTERM, a browser, and many clients at once."""

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from flaxformer_lite.core.objectives import TokenLabels
from flaxformer_lite.core.text import Languages
from flaxformer_lite.run import Run, load, write_run
from flaxformer_lite.tools.serve.limits import Limits
from flaxformer_lite.workdir.folder import RunFolder
from tests.support import needs, served
from tests.support.chromium import opened
from tests.support.commands import Command
from tests.support.experiments import use_one_device
from tests.support.paths import ROOT
from tests.support.text_runs import of_tokens

pytest.importorskip("uvicorn")
import uvicorn

from flaxformer_lite.tools.serve.app import make_app
from flaxformer_lite.tools.serve.server import (
    TOKEN,
    WatchedConnection,
    checked_names,
    checked_token,
    listening_socket,
    serve,
)
from tests.support.toy_task import serve_it

TEXTS = ["abc", "x", "", "hello", "a" * 15, "the fox", "bcd"]
HOSTILE = "<img src=x onerror=\"document.title='hacked'\">"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Folders of an encoder–decoder, of a decoder with a chat template, and of an encoder."""
    root, paths = tmp_path_factory.mktemp("runs"), []
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        for name, run in served.runs(root).items():
            write_run(RunFolder(root / name), run.config, 0, run.params, "random", tokenizers=run.tokenizers)
            paths.append(str(root / name))
    (root / "chat_template.jinja").rename(root / "documents" / "chat_template.jinja")
    return paths


@pytest.fixture(scope="module")
def loaded(folders: list[str]) -> dict[str, Run]:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        return {Path(folder).name: load(folder) for folder in folders}


class Server(NamedTuple):
    """A server in a process of its own."""

    process: "subprocess.Popen[str]"
    url: str


@contextlib.contextmanager
def serving(*words: str, **environment: str) -> Iterator[Server]:
    """A server until the end of the block, or until it ends by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flaxformer_lite", "serve", *words, "--port", "0"],
        stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"XLA_FLAGS": ""} | environment,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        lines = iter(process.stderr.readline, "")
        url = next(found[1] for line in lines if (found := re.search(r"at (http://\S+)", line)))
        yield Server(process, url)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.slow
def test_a_chat_template_without_end_takes_nothing_else_down(folders: list[str], tmp_path: Path):
    """Law: six clients whose prompts never end are refused by --timeout; health is answered meanwhile, and SIGTERM ends it."""

    run = shutil.copytree(folders[1], tmp_path / "documents")
    (run / "chat_template.jinja").write_text(served.ENDLESS)
    statuses: list[int] = []

    def ask(url: str) -> None:
        with pytest.raises(HTTPError) as caught:
            post(url, "/v1/chat/completions", {"model": "documents", "messages": [{"role": "user", "content": "hi"}]})
        statuses.append(caught.value.code)
        caught.value.close()

    with serving(str(run), "--timeout", "3") as server:
        threads = [threading.Thread(target=ask, args=(server.url,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            with urlopen(f"{server.url}/health", timeout=60) as response:
                assert response.status == 200
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert server.process.wait(60) == 0 and set(statuses) <= {422, 503, 504} and len(statuses) == 6


@pytest.fixture(scope="module")
def server(folders: list[str]) -> Iterator[Server]:
    with serving(*folders) as started:
        yield started


def post(url: str, path: str, body: Any) -> Any:

    with urlopen(Request(url + path, json.dumps(body).encode()), timeout=120) as response:
        return json.load(response)


@pytest.mark.slow
def test_answers_are_those_of_the_run_for_each_text_alone(server: Server, loaded: dict[str, Run]):
    """Law: many requests at once, with settings of their own, get what `run.translate` and its like return for a text alone."""
    pairs, documents, texts = loaded["pairs"], loaded["documents"], loaded["texts"]
    found: dict[Any, Any] = {}

    def ask(name: Any, path: str, body: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: found.update({name: post(server.url, path, body)["answers"]}))
        thread.start()
        return thread

    beam, drawn = {"beam_size": 2, "num_hypotheses": 2}, {"temperature": 0.9, "num_hypotheses": 2}
    threads = [ask(("t", text), "/api/translate", {"texts": text, **beam}) for text in TEXTS]
    for seed, text in enumerate(TEXTS):
        length = {"max_new_tokens": 3 + seed % 2}
        threads.append(ask(("g", text), "/api/generate", {"texts": text, "seed": seed, **drawn, **length}))
        threads.append(ask(("c", text), "/api/classify", {"texts": text}))
        threads.append(ask(("m", text), "/api/fill-mask", {"texts": f"{text}[MASK]", "top": 3}))
    for thread in threads:
        thread.join()
    for seed, text in enumerate(TEXTS):
        for kind, expected in (
            ("t", pairs.hypotheses([text], **beam)[0]),
            ("g", documents.completions([text], seed=seed, max_new_tokens=3 + seed % 2, **drawn)[0]),
        ):
            (answers,) = found[kind, text]
            assert [answer["text"] for answer in answers] == [answer.text for answer in expected], (kind, text)
            np.testing.assert_allclose([a["score"] for a in answers], [a.score for a in expected], rtol=1e-4)
        (answer,), (prediction,) = found["c", text], texts.classify([text])
        assert answer["label"] == prediction.label
        np.testing.assert_allclose(list(answer["scores"].values()), list(prediction.scores.values()), rtol=1e-4)
        ((mask,),), ((alone,),) = found["m", text], texts.fill_mask([f"{text}[MASK]"], 3)
        assert [candidate["id"] for candidate in mask] == [candidate.id for candidate in alone]
    weights = post(server.url, "/api/attention", {"source": "abc", "target": "ba"})
    assert np.asarray(weights["weights"]).shape == pairs.attention("abc", "ba").cross.shape
    assert (len(weights["rows"]), len(weights["columns"])) == (3, 4) and weights["kind"] == "cross"
    for run, kind, target in ((documents, "decoder", "d"), (texts, "encoder", None)):
        found = post(
            server.url, "/api/attention", {"run": Path(run.folder.path).name, "source": "abc", "target": target}
        )
        expected = getattr(run.attention("abc", target), kind)
        np.testing.assert_allclose(found["weights"], expected, atol=6e-5)
        assert found["kind"] == kind and [len(found["rows"]), len(found["columns"])] == [*expected.shape[2:]]


@pytest.mark.slow
def test_sixty_four_clients_are_answered_on_eight_devices(folders: list[str], loaded: dict[str, Run]):
    """Law: no answer is lost and none is another text's; batches of all devices are answered by one call."""

    asked = {client: [f"{client:02d} {turn}" for turn in range(3)] for client in range(64)}
    answers: dict[str, str] = {}
    with serving(folders[0], "--timeout", "300", XLA_FLAGS="--xla_force_host_platform_device_count=8") as server:

        def ask(texts: list[str]) -> None:
            for text in texts:
                ((answer,),) = post(server.url, "/api/translate", {"texts": text})["answers"]
                answers[text] = answer["text"]

        threads = [threading.Thread(target=ask, args=(texts,)) for texts in asked.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with urlopen(server.url + "/metrics") as response:
            calls = response.read().decode()
    texts = [text for of_client in asked.values() for text in of_client]
    assert answers == dict(zip(texts, loaded["pairs"].translate(texts), strict=True))
    (count,) = re.findall(r"call_texts_count\{.*?\} ([\d.]+)", calls)
    assert float(count) < len(texts)  # how many fewer depends on the load of the machine


@needs.openai
@pytest.mark.slow
def test_openais_client_works(server: Server, loaded: dict[str, Run]):
    """Oracle: OpenAI's own client: models, completions, chats and vectors, whole and as streams, and its classes of errors."""
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [card.id for card in client.models.list()] == ["pairs", "documents", "texts"]
    run = loaded["documents"]
    asked: dict[str, Any] = {"model": "documents", "prompt": "Once upon", "max_tokens": 9}
    whole = client.completions.create(**asked)
    assert whole.choices[0].text == run.generate(["Once upon"], max_new_tokens=9)[0]
    assert whole.usage is not None and whole.usage.prompt_tokens == 10
    drawn = client.completions.create(**asked, temperature=0.8, seed=5, n=2, extra_body={"top_k": 50})
    expected = run.completions(["Once upon"], max_new_tokens=9, temperature=0.8, top_k=50, seed=5, num_hypotheses=2)
    assert [choice.text for choice in drawn.choices] == [answer.text for answer in expected[0]]
    parts = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text
    assert parts[-1].usage == whole.usage
    conversation: dict[str, Any] = {"model": "documents", "messages": [{"role": "user", "content": "Hi"}]}
    chat = client.chat.completions.create(**conversation, max_completion_tokens=7)
    prompt = run.tokenizers.target.encode("[user] Hi\n[assistant] ")  # type: ignore[union-attr]
    ids = run.completions_of_ids([prompt], max_new_tokens=7)[0][0].tokens
    assert chat.choices[0].message.content == run.tokenizers.target.decode(i for i in ids if i < 260)  # type: ignore[union-attr]
    streamed = client.chat.completions.create(**conversation, max_completion_tokens=7, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in streamed) == chat.choices[0].message.content
    translated = client.completions.create(model="pairs", prompt=["abc", "hello"])
    assert [choice.text for choice in translated.choices] == loaded["pairs"].translate(["abc", "hello"])
    expected_vectors = loaded["texts"].embed(["abc", "fox"])
    for encoding in ({}, {"encoding_format": "float"}):  # by default the client asks for base64
        vectors = client.embeddings.create(model="texts", input=["abc", "fox"], **encoding)
        np.testing.assert_allclose([v.embedding for v in vectors.data], expected_vectors, rtol=1e-4, atol=1e-6)
    with pytest.raises(openai.NotFoundError, match="there is no run 'other'"):
        client.completions.create(model="other", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="logprobs"):
        client.completions.create(**asked, logprobs=2)
    with pytest.raises(openai.APIStatusError, match="reads at most 60") as caught:
        client.completions.create(model="documents", prompt="a" * 100)
    assert caught.value.status_code == 413 and caught.value.code == "context_length_exceeded"


@pytest.mark.slow
def test_on_sigterm_open_requests_are_answered_and_the_token_is_needed(folders: list[str]):
    """Law: a request that is open at SIGTERM gets its answer, new ones find no server, and the exit status is 0."""

    token = "a-token-of-this-test"
    with serving(folders[0], "--engine", "jax", **{TOKEN: token}) as server:
        with pytest.raises(HTTPError, match="401"):
            post(server.url, "/api/translate", {"texts": "abc"})
        content = json.dumps({"texts": "abc"}).encode()
        request = Request(f"{server.url}/api/translate", content, {"Authorization": f"Bearer {token}"})
        answers: list[Any] = []

        def ask() -> None:
            with urlopen(request, timeout=100) as response:
                answers.append(json.load(response)["answers"])

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.4)  # the model compiles
        assert not answers
        server.process.send_signal(signal.SIGTERM)
        thread.join()
        assert server.process.wait(30) == 0 and len(answers[0]) == 1
        assert server.process.stderr is not None
        assert server.process.stderr.read().splitlines()[-1] == "stopped; requests: 1 answered, 1 refused"
        with pytest.raises(URLError):
            urlopen(request, timeout=5)


def test_a_signal_with_its_first_line_ends_it(folders: list[str]):
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if " at http://127.0.0.1:" in line:
            signal.raise_signal(signal.SIGTERM)

    options: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "allowed_hosts": (), "warm_up": False}
    options |= {"weights": {}, "engine": {}}
    missed: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: missed.append(number))
    try:
        assert serve(folders[:1], Limits(), **options, say=say) and said[-1] == "stopped; requests: none"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not missed


VERBS = {"translate": "Translate", "generate": "Continue", "chat": "Send", "fill-mask": "Predict", "classify": "Classify",
         "label": "Label", "embed": "Compare", "rank": "Rank"}  # fmt: skip
"""The names of the page's button."""


@needs.chromium
@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_the_page_works_in_chromium(server: Server, tmp_path: Path, width: int, scheme: str):
    """Law: every task is answered, texts stay texts, no console message, no other request, no sideways scroll."""
    asked = {"translate": "abc\nxyz", "generate": HOSTILE[:30], "chat": "Hi", "fill-mask": "ab[MASK]c[MASK]", "classify": "abc\nde",
             "embed": "abc\nfox\nthe", "rank": "abc\nfox\nthe"}  # fmt: skip
    with opened(server.url, width, scheme, own=(server.url, "data:")) as (tab, heard):
        tab.wait_for_selector("#tasks button")
        seen = []
        for run in ("pairs", "documents", "texts"):
            tab.select_option("#place select", run)
            for name in tab.locator("#tasks button").all_inner_texts():
                tab.click(f"#tasks button:text-is('{name}')")
                assert tab.inner_text("#go") == VERBS[name]
                tab.fill("#ask > textarea", asked[name])
                if (run, name) == ("documents", "translate"):
                    tab.fill("#options input[name=to]", "de")
                    assert tab.locator("#options input").count() == 3  # and the beam's size, the number of translations
                if name == "generate":  # the map is of prompt and answer together, at most 60 bytes
                    tab.fill("#options input[name=max_new_tokens]", "4")
                tab.click("#go")
                tab.wait_for_selector("#state.done", timeout=60_000)
                seen.append(name)
                if name != "chat":
                    tab.click("#answer button >> nth=0")
                    tab.wait_for_selector("#attention:not([hidden]) #map td", timeout=60_000)
                    tab.select_option("#heads select[name=head]", index=1)
                assert tab.inner_text("#answer").strip(), name
                assert tab.locator("#answer .map td").count() == (9 if name == "embed" else 0)
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert seen == ["translate", "generate", *(name for name in asked if name != "generate")]
        assert "hacked" not in tab.title() and tab.locator("img").count() == 0
        tab.fill("#ask > textarea", "a" * 100 + "\nb")
        tab.click("#go")
        tab.wait_for_selector("#state.error")
        assert "reads at most 20" in tab.inner_text("#state")
    assert [line for line in heard if "413" not in line] == []  # the browser notes the refusal


@needs.chromium
@pytest.mark.slow
def test_the_page_of_several_languages_sends_its_menus_and_terms(tmp_path: Path):
    """Law: what is chosen and typed there reaches the run, as its answer, attention and refusals show."""
    run = served.runs(tmp_path)["pairs"]
    data = dataclasses.replace(run.config.data, languages=Languages(codes=("a", "b", "c")))
    config = dataclasses.replace(run.config, data=data)
    write_run(RunFolder(tmp_path / "several"), config, 0, run.params, "random", tokenizers=run.tokenizers)
    with (
        serving(str(tmp_path / "several")) as server,
        opened(server.url, 390, "dark", own=(server.url, "data:")) as (tab, heard),
    ):
        tab.wait_for_selector("#tasks button")
        tab.fill("#ask > textarea", "de")
        tab.select_option("#options select[name=from]", "c")
        tab.select_option("#options select[name=to]", "b")
        tab.fill("#options input[name=prefix]", "hij")
        tab.click("#go")
        tab.wait_for_selector("#state.done", timeout=60_000)
        assert tab.inner_text("#answer td >> nth=1").startswith("hij")
        tab.click("#answer button >> nth=0")
        tab.wait_for_selector("#attention:not([hidden]) #map td", timeout=60_000)
        assert tab.locator("#map thead th").all_inner_texts()[1:4] == ["c", "d", "e"]
        assert "b" in tab.locator("#map tbody th, #map tr th").all_inner_texts()
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for terms, message in (
            ("", "written: '%s'"),
            ("e=", "'e' → '': neither"),
            ("a = f\nde = i = j", "'i = j' is not"),
        ):
            tab.fill("#ask > textarea", "%s" if terms == "" else "de")
            tab.check("#options input[name=placeholders]")
            tab.fill("#options textarea[name=terms]", terms)
            tab.click("#go")
            tab.wait_for_selector(f'#state.error:has-text("{message}")')
    assert [line for line in heard if "422" not in line] == []


@needs.chromium
@pytest.mark.slow
def test_the_page_marks_the_entities_of_a_text(tmp_path: Path):
    """Law: the marks are the spans that `run.label` returns, also behind characters of two UTF-16 units; texts stay texts."""
    run = served.runs(tmp_path)["texts"]
    config = of_tokens(run.config, TokenLabels(labels=("O", "B-A", "I-A")))
    run = served.as_run(config, run.required_tokenizers.source, tmp_path / "none")
    write_run(RunFolder(tmp_path / "words"), config, 0, run.params, "random", tokenizers=run.tokenizers)
    text = f"🙂 ab 🙂 {HOSTILE} cd"
    (found,) = run.label([text], warn=lambda line: None)
    spans = [text[span.start : span.end] for span in found.spans]
    with (
        serving(str(tmp_path / "words")) as server,
        opened(server.url, 390, "dark", own=(server.url, "data:")) as (tab, heard),
    ):
        tab.wait_for_selector("#tasks button")
        assert tab.inner_text("#go") == "Label"
        tab.fill("#ask > textarea", text)
        tab.click("#go")
        tab.wait_for_selector("#state.done", timeout=60_000)
        assert spans and tab.locator("#answer mark").all_inner_texts() == [f"{span} A" for span in spans]
        assert tab.inner_text("#answer p").replace(" A", "") == text.replace(" A", "")
        assert [
            row[0] for row in (cells.split("\t") for cells in tab.locator("#answer tr").all_inner_texts()[1:])
        ] == spans
        assert "hacked" not in tab.title() and tab.locator("img").count() == 0
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert heard == []


@needs.chromium
@pytest.mark.slow
def test_the_page_has_a_form_for_a_task_that_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: a field for each value of the request, answers as a table; texts stay texts, and refusals are shown."""
    serve_it(monkeypatch)
    app = make_app({"texts": served.runs(tmp_path)["texts"]}, Limits())
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    with listening_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with opened(url, 390, "light", own=(url, "data:")) as (tab, heard):
                tab.click("#tasks button:text-is('find')")
                assert tab.inner_text("#hint") == "The places of a word in a text, without a model."
                assert tab.locator("#ask > textarea").is_hidden()
                assert [label.strip() for label in tab.locator("#options label").all_inner_texts()] == [
                    "word",
                    "text",
                    "top",
                ]
                word, text = tab.locator("#options textarea").all()
                word.fill("<b>")
                text.fill("a <b> <b>")
                tab.fill("#options input", "1")
                tab.click("#go")
                tab.wait_for_selector("#state.done")
                assert tab.locator("#answer tr").all_inner_texts() == ["found\tstart\tshare", "<b>\t2\t0.2500"]
                assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
                for given, message in (("", "questions.word: Field required"), ("a" * 30, "reads at most 20")):
                    word.fill(given)
                    tab.click("#go")
                    tab.wait_for_selector(f'#state.error:has-text("{message}")')
                tab.click("#tasks button:text-is('embed')")
                assert tab.locator("#ask > textarea").is_visible() and not tab.locator("#options textarea").count()
                assert [line for line in heard if "413" not in line and "422" not in line] == []
        finally:
            server.should_exit = True
            thread.join()
            app.state.service.close(5)


@pytest.mark.slow
def test_ten_thousand_requests_with_clients_that_go(folders: list[str], tmp_path: Path):
    """Law: none is lost and none gets another's answer."""
    sentences = tmp_path / "sentences"
    rng = np.random.default_rng(0)
    lines = ["".join(rng.choice(list(served.LETTERS[:24]), rng.integers(1, 18))) for _ in range(200)]
    sentences.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, str(ROOT / "benchmarks" / "serve.py"), folders[0], "--sentences", str(sentences)]
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert (report["requests"], report["lost"], report["mixed"], report["exit_status"]) == (10_000, 0, 0, 0), report
    assert report["given_up"] > 300 and report["texts_per_call"] > 2, report


def test_a_token_is_needed_where_others_reach_the_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(TOKEN, raising=False)
    assert checked_token("127.0.0.1") is None
    with pytest.raises(ValueError, match=f"set {TOKEN} to a secret"):
        checked_token("0.0.0.0")
    for token in ("short", "with spaces and é in it"):
        monkeypatch.setenv(TOKEN, token)
        with pytest.raises(ValueError, match="at least 16, of printable ASCII"):
            checked_token("127.0.0.1")
    monkeypatch.setenv(TOKEN, "0123456789abcdef")
    assert checked_token("0.0.0.0") == "0123456789abcdef"


def test_headers_have_a_time_limit_and_answers_have_not():
    """Law: a connection without whole headers is closed, the first or a later request's; one that waits for an answer is not."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.4)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    asked, part = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nHo"

    async def ask(port: int, *sent: bytes) -> int:
        """Returns the number of answers until the connection is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answers = 0
        for content in sent:
            writer.write(content)
            if content == asked:
                answers += (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        assert await reader.read() == b""
        writer.close()
        return answers

    async def scenario() -> list[int]:
        async with connected(app, seconds=0.2) as port:
            return await asyncio.gather(*(ask(port, *sent) for sent in ((), (part,), (asked, asked, part))))

    assert asyncio.run(scenario()) == [0, 0, 2]


@contextlib.asynccontextmanager
async def connected(app: Any, seconds: float) -> AsyncIterator[int]:
    """An application on a socket, whose port is given; headers must arrive in `seconds`."""
    http: Any = type("Watched", (WatchedConnection,), {"seconds": seconds})
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", http=http, timeout_keep_alive=1))
    with listening_socket("127.0.0.1", 0) as listener:
        port, task = listener.getsockname()[1], asyncio.ensure_future(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(20):
            yield port
        server.should_exit = True
        await task


def test_further_names_are_compared_without_case_and_port():
    assert checked_names("127.0.0.1", ["Translate.Example.org", "proxy:8443"]) == ["translate.example.org", "proxy"]
    assert checked_names("0.0.0.0", []) == []
    with pytest.raises(ValueError, match="--allow-host is for a server on 127"):
        checked_names("0.0.0.0", ["proxy"])
    for name in ("", "https://proxy", "["):
        with pytest.raises(ValueError, match=r"--allow-host is '.*': it must be a name without scheme"):
            checked_names("127.0.0.1", [name])


def test_a_mistake_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(TOKEN, raising=False)
    with listening_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, message in (
            (("--port", "70000"), "--port is 70000"),
            (("--port", port), f"--port {port} cannot be used"),
            (("--host", "0.0.0.0"), TOKEN),
            (("--queue", "0"), "--queue is 0"),
            (("--timeout", "0"), "--timeout is 0.0"),
            (("--port", "0", "--quiet"), "does not exist"),
        ):
            assert message in command.mistake("serve", tmp_path / "none", *words)


def test_without_the_extra_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch, command: Command):
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert 'pip install "flaxformer-lite[serve]"' in command.mistake("serve", "runs/first")
