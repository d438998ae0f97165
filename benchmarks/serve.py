"""Asks a server of a run for many translations at once, with clients that go, and compares it with the run without a server.

python benchmarks/serve.py RUN [--sentences FILE] [--requests 10000] [--clients 64] [--gone 0.05] [--engine jax]

Starts `flaxformer-lite serve RUN` on a free port. Each client sends one sentence at a time over a connection that stays open. A
share of the requests is given up at a random moment, and the connection closed. Every other answer must be the translation that the
run gives for the sentence alone. Prints one JSON object:

  lost, mixed           requests without an answer, and with another one than the run's
  per_second            answers a second, of the server, and of `run.translate` with all sentences in one call (bare)
  p50_ms, p99_ms        milliseconds from a request to its answer
  texts_per_call        sentences that one call to the model answered, on average
"""

import argparse
import asyncio
import json
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sides import processor

BARE = 2000
"""Sentences of the measurement without a server."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Outcome(NamedTuple):
    """One request that was not given up."""

    sentence: str
    status: int
    text: str
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--sentences", metavar="FILE", help="one sentence a line; default: those of data.eval")
    parser.add_argument("--lines", type=int, default=500, help="sentences that are used")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--gone", type=float, default=0.05, help="share of the requests that are given up")
    parser.add_argument("--engine", default="auto", help="what searches in the server: auto, jax or ctranslate2")
    options = parser.parse_args()
    expected, bare = bare_decoder(options)
    words = ["serve", options.run, "--port", "0", "--warm-up", "--engine", options.engine]
    server = subprocess.Popen([sys.executable, "-m", "flaxformer_lite", *words], stderr=subprocess.PIPE, text=True)
    try:
        port = wait_for_port(server)
        asyncio.run(load(port, list(expected), options.requests // 10, options.clients, 0))
        before = counted_calls(port)
        started = time.perf_counter()
        outcomes, gone = asyncio.run(load(port, list(expected), options.requests, options.clients, options.gone))
        seconds = time.perf_counter() - started
        calls, texts = (after - early for after, early in zip(counted_calls(port), before, strict=True))
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(60)
    times = sorted(1000 * outcome.seconds for outcome in outcomes)
    report = {
        "processor": processor(),
        "requests": options.requests,
        "given_up": gone,
        "lost": options.requests - gone - sum(outcome.status == 200 for outcome in outcomes),
        "mixed": sum(outcome.status == 200 and outcome.text != expected[outcome.sentence] for outcome in outcomes),
        "per_second": {"server": round(len(outcomes) / seconds, 1), "bare": round(bare, 1)},
        "p50_ms": round(statistics.median(times), 1),
        "p99_ms": round(times[int(0.99 * len(times))], 1),
        "texts_per_call": round(texts / max(calls, 1), 1),
        "exit_status": status,
    }
    print(json.dumps(report))


def bare_decoder(options: argparse.Namespace) -> tuple[dict[str, str], float]:
    """Returns the translation of each sentence, and how many the run translates a second without a server."""
    import flaxformer_lite

    run = flaxformer_lite.load(options.run)
    if options.sentences:
        lines = Path(options.sentences).read_text(encoding="utf-8").splitlines()
    else:
        assert run.config.data.eval is not None, "the run has no data.eval: name --sentences"
        lines = [pair.source for pair in run.config.data.eval.open("data.eval")]
    sentences = list(dict.fromkeys(lines))[: options.lines]
    expected = dict(zip(sentences, run.translate(sentences), strict=True))
    repeated = random.Random(1).choices(sentences, k=BARE)
    run.translate(repeated)  # compiles
    started = time.perf_counter()
    run.translate(repeated)
    return expected, BARE / (time.perf_counter() - started)


def wait_for_port(server: "subprocess.Popen[str]") -> int:
    """Returns the port that the server writes once it listens."""
    assert server.stderr is not None
    for line in server.stderr:
        if found := re.search(r"serving .* at http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise SystemExit(f"the server ended with status {server.wait()}")


async def load(
    port: int, sentences: Sequence[str], requests: int, clients: int, gone: float
) -> tuple[list[Outcome], int]:
    """Returns what became of the requests, and how many were given up."""
    left, outcomes, given_up = iter(range(requests)), list[Outcome](), 0

    async def client(number: int) -> None:
        nonlocal given_up
        generator, connection = random.Random(number), await asyncio.open_connection("127.0.0.1", port)
        for _ in left:
            sentence = generator.choice(sentences)
            started = time.perf_counter()
            asking = asyncio.ensure_future(ask(connection, sentence))
            if generator.random() < gone:
                await asyncio.wait({asking}, timeout=generator.random() * 0.1)
                asking.cancel()
                given_up += 1
                connection[1].close()
                connection = await asyncio.open_connection("127.0.0.1", port)
                continue
            status, body = await asking
            text = body["answers"][0][0]["text"] if status == 200 else ""
            outcomes.append(Outcome(sentence, status, text, time.perf_counter() - started))
        connection[1].close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return outcomes, given_up


async def ask(connection: Connection, sentence: str) -> tuple[int, Any]:
    """Returns the status and the body of the answer to one sentence."""
    reader, writer = connection
    body = json.dumps({"texts": [sentence]}).encode()
    head = f"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(re.findall(r"(?i)^content-length: (\d+)", answer, re.M)[0])
    return int(answer.split()[1]), json.loads(await reader.readexactly(length))


def counted_calls(port: int) -> tuple[float, float]:
    """Returns the calls to the model so far, and the texts that they answered, from the server's metrics."""
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    numbers = [re.findall(rf"^flaxformer_lite_call_texts_{end}\S* (\S+)$", text, re.M) for end in ("count", "sum")]
    calls, texts = (sum(map(float, found)) for found in numbers)
    return calls, texts


if __name__ == "__main__":
    main()
