"""The process that renders the chat template of a run: a program that came with a model, and that may never end.

The server's side is `ChatProcess`. The other side is `main`: it answers one line of JSON with another, and has limits of time and
memory.
"""

import contextlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from flaxformer_lite.files.chats.chat import ChatTemplate
from flaxformer_lite.tools.serve.limits import Refusal

SECONDS = 10.0
"""The time that a template may take."""
MEMORY = 512 * 2**20
"""The memory that a template may take, in bytes."""
MOST_PROMPT_BYTES = 4 * 2**20
"""The largest prompt."""
ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TZ", "LANG", "LC_ALL")
"""Variables that the process gets. The others may hold secrets."""


class ChatProcess:
    """A template and the process that renders it, which starts with the first prompt, and again after it was killed.

    One thread asks it, so the prompts of a run wait for one another, and for nothing else.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self.template = template
        self.thread = ThreadPoolExecutor(1, "chat template")
        self.process: subprocess.Popen[bytes] | None = None

    def check(self) -> None:
        """Compiles the template in a process that ends: nobody may ever ask for a prompt. Raises: ValueError if that fails."""
        error = self.ask(None, math.inf, {}).get("error")
        self.stop()
        if error:
            raise ValueError(error)

    def submit(
        self, messages: Sequence[Mapping[str, object]], deadline: float = math.inf, **options: object
    ) -> Future[str]:
        """Returns the coming prompt, with the options of `ChatTemplate.whole_prompt`.

        It raises: Refusal if the template gives none by `deadline`, a time of the monotonic clock.
        """

        def prompt() -> str:
            reply = self.ask(messages, deadline, options)
            if "error" in reply:
                raise Refusal(422, reply["error"], param="messages")
            return reply["text"]

        return self.thread.submit(prompt)

    def ask(
        self, messages: Sequence[Mapping[str, object]] | None, deadline: float, options: Mapping[str, object]
    ) -> dict[str, str]:
        """Returns the answer of the process, or the reason why it ended without one."""
        process = self.process or self.start()
        seconds = max(1e-3, min(SECONDS, deadline - time.monotonic()))
        asked = {"template": self.template.fields, "seconds": seconds}
        line = b""
        with contextlib.suppress(OSError):  # of a process that has ended
            process.stdin.write(json.dumps(asked | {"messages": messages, "options": options}).encode() + b"\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            line = process.stdout.readline()  # type: ignore[union-attr]
        if line.endswith(b"\n"):
            reply: dict[str, str] = json.loads(line)
            return reply
        self.stop()
        late = process.returncode == -signal.SIGALRM
        return {
            "error": f"the chat template {f'did not end within {seconds:.3g} seconds' if late else 'ended its process'}"
        }

    def start(self) -> "subprocess.Popen[bytes]":
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=environment, start_new_session=True,  # Ctrl-C reaches only the server
        )  # fmt: skip
        return self.process

    def stop(self) -> None:
        """Ends the process; the next prompt starts another one."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError), process:  # closes the pipes, and waits
                pass

    def close(self) -> None:
        """Ends the process and the thread. Prompts that wait are refused."""
        self.thread.shutdown(wait=False, cancel_futures=True)
        self.stop()
        self.thread.shutdown()  # a prompt in progress may have started another process
        self.stop()


def rendered(asked: Mapping[str, Any]) -> dict[str, str]:
    """Returns the prompt as `text`, or the reason of its refusal as `error`. A request without messages compiles only."""
    template = ChatTemplate(**asked["template"])
    try:
        if asked["messages"] is None:
            template.compile()
            return {"text": ""}
        text = template.whole_prompt(asked["messages"], **asked["options"])
    except MemoryError:
        return {"error": f"the chat template needs more than {MEMORY // 2**20} MiB of memory"}
    except ValueError as error:
        return {"error": str(error)}
    size = len(text.encode())
    return (
        {"text": text}
        if size <= MOST_PROMPT_BYTES
        else {"error": f"the chat template writes {size:,} bytes, more than {MOST_PROMPT_BYTES:,}"}
    )


def main() -> None:
    """Answers until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # not on macOS, which has no such limit
        with open("/proc/self/statm") as pages:
            limit = int(pages.read().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])  # ends the process, also in Python's own C code
        reply = json.dumps(rendered(asked))
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
