"""The socket: a server of an application until SIGTERM or Ctrl-C, then the end of the requests that are open."""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

from flaxformer_lite.run import load
from flaxformer_lite.run.description import run_names
from flaxformer_lite.tools.serve.limits import CONNECTIONS, LOOPBACK, Limits

EXTRA = 'pip install "flaxformer-lite[serve]"'
TOKEN = "FLAXFORMER_LITE_TOKEN"
"""Names the environment variable with the token. A command line would show it to every user of the machine."""
MIN_TOKEN = 16
"""Characters of the shortest token."""
BACKLOG = 2048
"""Connections that wait to be accepted."""
HEADER_SECONDS = 20.0
"""Seconds in which the headers of a request must arrive, from the opening of the connection or from their first byte."""
LAST_CALL = 1.0
"""Seconds that a call to the model may take after the last request was answered."""
DRAIN_EXTRA = 5.0
"""Seconds beyond the limit of a request after which open requests are cut off."""


def uvicorn() -> ModuleType:
    """Returns the module. Raises: ValueError if a package of the extra is not installed."""
    try:
        import jinja2  # noqa: F401  # chat templates
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn
    except ModuleNotFoundError as error:
        raise ValueError(f"serve needs {error.name}, which is not installed: {EXTRA}") from None
    return uvicorn


def checked_token(host: str) -> str | None:
    """Returns the token of the environment. Raises: ValueError if it is too short, or the host needs one and there is none."""
    token = os.environ.get(TOKEN)
    if token is None and host not in LOOPBACK:
        raise ValueError(
            f"--host is {host}, which other machines may reach: set {TOKEN} to a secret that clients then send as a bearer token, "
            f"for example {secrets.token_urlsafe(24)}, or leave --host at 127.0.0.1"
        )
    if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable()):
        raise ValueError(f"{TOKEN} has {len(token)} characters: it needs at least {MIN_TOKEN}, of printable ASCII")
    return token


def checked_names(host: str, allowed: Sequence[str]) -> list[str]:
    """Returns the names of --allow-host as `Guard` compares them. Raises: ValueError for no name, or where none is compared."""
    from flaxformer_lite.tools.serve.guard import host_name

    if allowed and host not in LOOPBACK:
        raise ValueError(
            f"--allow-host is for a server on 127.0.0.1, but --host is {host}, where the token decides: leave it out"
        )
    for name in allowed:
        if not host_name(name) or "/" in name:
            raise ValueError(
                f"--allow-host is {name!r}: it must be a name without scheme and path, such as translate.example.org"
            )
    return [host_name(name) for name in allowed]


def serve(
    folders: Sequence[str],
    limits: Limits,
    *,
    host: str,
    port: int,
    allowed_hosts: Sequence[str],
    weights: dict[str, Any],
    warm_up: bool,
    say: Callable[[str], None],
) -> bool:
    """Serves runs until SIGTERM or SIGINT, answers the open requests, and returns whether the model has stopped computing.

    It may compute for clients that have gone; nobody waits for that, but the end of Python would crash it.

    Raises: ValueError if a package, a token or a run is missing, and OSError if the address cannot be used.
    """
    library, token = uvicorn(), checked_token(host)
    allowed = checked_names(host, allowed_hosts)
    from flaxformer_lite.tools.serve.app import make_app

    listener = listening_socket(host, port)
    with listener:
        runs = []
        for folder in folders:
            say(f"loading {folder}")
            runs.append(load(folder, **weights))
        names = run_names([run.folder for run in runs])
        hosts = (*LOOPBACK, *allowed) if host in LOOPBACK else None
        app = make_app(dict(zip(names, runs, strict=True)), limits, token=token, hosts=hosts)
        for served in app.state.service.runs.by_name.values() if warm_up else ():
            served.warm_up(say)
        listener.listen(BACKLOG)
        shown = f"[{host}]" if ":" in host else host
        ready = f"serving {', '.join(names)} at http://{shown}:{listener.getsockname()[1]} (Ctrl-C or SIGTERM ends it)"
        config = library.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            http=watched_connections(HEADER_SECONDS),
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=int(limits.seconds + DRAIN_EXTRA),
        )
        server = announced_server(library, config, lambda: say(ready))

        def end(number: int, frame: FrameType | None) -> None:
            """Handles a signal that comes before uvicorn handles it, and the one that uvicorn raises again once it has drained."""
            server.should_exit = True

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            server.run(sockets=[listener])
        finally:
            stopped: bool = app.state.service.close(LAST_CALL)
            say(f"stopped; {app.state.service.metrics.summary()}")
            for number, handler in before.items():
                signal.signal(number, handler)
    return stopped


def announced_server(library: ModuleType, config: Any, announce: Callable[[], None]) -> Any:
    """Returns uvicorn's server that calls `announce` once it takes requests and handles signals."""
    base: Any = library.Server

    class AnnouncedServer(base):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

    return AnnouncedServer(config)


def watched_connections(seconds: float) -> Any:
    """Returns uvicorn's protocol of a connection, which is closed if the headers of a request take longer; uvicorn has no limit.

    Each request has the number of open connections in its state (`CONNECTIONS`): uvicorn's own answer to too many is no JSON, and
    is counted nowhere.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol

    class WatchedConnection(base):
        app: Any
        timer: asyncio.TimerHandle | None = None

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            answer = self.app

            async def noted(scope: Any, receive: Any, send: Any) -> None:
                scope["state"][CONNECTIONS] = len(self.connections)
                await answer(scope, receive, send)

            self.app = noted

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.timer = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self.stop_timer()  # the headers are whole
            elif self.timer is None:
                self.timer = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, error: Exception | None) -> None:
            self.stop_timer()
            super().connection_lost(error)

        def stop_timer(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
            self.timer = None

    return WatchedConnection


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a bound socket. Raises: ValueError if the address is not this machine's, or the port is taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ValueError(f"--host {host} --port {port} cannot be used ({error.strerror}): choose another") from None
    return listener
