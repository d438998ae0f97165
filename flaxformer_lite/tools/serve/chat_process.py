"""The process that compiles and renders chat templates: a program of its own, which `chat.py` starts and ends.

It reads a JSON object a line and answers with one. A template is a program from a stranger: it runs in Jinja's sandbox, the process
has a limit of memory, and ends itself after a limit of time. A template finds what `transformers.utils.chat_template_utils` of
version 5.24 gives it. The program imports nothing of the package, so that it starts at once.
"""

import contextlib
import datetime
import functools
import json
import resource
import signal
import sys
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 2**29
"""Bytes of address space that this process may have; Python and Jinja take 2**25."""
MOST_BYTES = 2**22
"""Bytes of the longest prompt: a request has at most 2**20, and a template may write them as longer escapes."""
TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the last message in a prompt that continues it, as in the library."""


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks an answer for training, and is its content."""

    tags = {"generation"}  # noqa: RUF012  # as in the base class

    def parse(self, parser: Any) -> Any:
        """Returns the block as a call, so that it has variables of its own, as in the library."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("content"), [], [], body).set_lineno(line)

    def content(self, caller: Any) -> Any:
        return caller()


class Dict:
    """`dict` without its further attributes."""

    def __call__(self, *arguments: Any, **named: Any) -> dict[Any, Any]:
        return dict(*arguments, **named)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class Namespace(jinja2.utils.Namespace):
    """`namespace` without names that begin with an underscore."""

    def __init__(*arguments: Any, **named: Any) -> None:  # `self` is a name that a template may use
        self, given = arguments[0], dict(*arguments[1:], **named)
        for name in given:
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        Namespace.check(name)
        super().__setitem__(name, value)

    @staticmethod
    def check(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"the name {name!r} of a namespace begins with an underscore")


def refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Returns JSON; Jinja's own filter is for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(1)
def compiled(source: str) -> jinja2.Template:
    """Returns the template, in a sandbox without access to Python's attributes, and with blocks trimmed."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.datetime.now().strftime(form),
        "dict": Dict(),
        "namespace": Namespace,
    }
    return environment.from_string(source)


def rendered(source: str, messages: list[dict[str, Any]], continues: bool, variables: dict[str, Any]) -> str:
    """Returns the prompt; with `continues` it ends within the last message, which the answer goes on with."""
    if not continues:
        return compiled(source).render(messages=messages, **variables)
    final = messages[-1]["content"]
    text = compiled(source).render(messages=[*messages[:-1], messages[-1] | {"content": final + TAG}], **variables)
    if final.strip() not in text or (end := text.rfind(TAG.strip())) < 0:
        raise jinja2.TemplateError("continue_final_message is set, but the template changes the last message")
    return text[:end] if text.startswith(TAG, end) else text[:end].rstrip()  # a template may trim a message


def answer(asked: dict[str, Any]) -> dict[str, str]:
    """Returns the prompt as `text`, or why there is none as `error`. A request without messages compiles only."""
    try:
        if asked["messages"] is None:
            compiled(asked["source"])
            return {"text": ""}
        text = rendered(asked["source"], asked["messages"], asked["continues"], asked["variables"])
        size = len(text.encode())  # fails for half a surrogate pair, which no tokenizer reads
    except MemoryError:
        return {"error": f"it needs more than {MEMORY // 2**20} MiB of memory"}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno}: {error}"}
    except Exception as error:  # a program may raise anything
        return {"error": " ".join(str(error).split())[:500] or type(error).__name__}
    return {"text": text} if size <= MOST_BYTES else {"error": f"it writes {size:,} bytes, more than {MOST_BYTES:,}"}


def main() -> None:
    """Answers until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])  # ends the process, also in Python's own C code
        found = json.dumps(answer(asked))
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(found + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
