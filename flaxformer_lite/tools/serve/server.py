"""The socket: a server of an application until SIGTERM or Ctrl-C, then the end of the requests that are open."""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from flaxformer_lite.run import load
from flaxformer_lite.run.description import run_names
from flaxformer_lite.tools.serve.app import make_app
from flaxformer_lite.tools.serve.guard import host_name
from flaxformer_lite.tools.serve.limits import LOOPBACK, Limits

TOKEN = "FLAXFORMER_LITE_TOKEN"
"""Names the environment variable with the token. A command line would show it to every user of the machine."""
MIN_TOKEN = 16
"""Characters of the shortest token."""
LAST_CALL = 1.0
"""Seconds that a call to the model may take after the last request was answered."""
DRAIN_EXTRA = 5.0
"""Seconds beyond the limit of a request after which open requests are cut off."""
HTTPProtocol: Any = AutoHTTPProtocol


def checked_token(host: str) -> str | None:
    """Returns the token of the environment. Raises: ValueError if it is too short, or the host needs one and it is not set."""
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
    engine: dict[str, object],
    warm_up: bool,
    say: Callable[[str], None],
) -> bool:
    """Serves runs until SIGTERM or SIGINT, answers the open requests, and returns whether the model has stopped computing.

    engine: keywords of `Run.searching`, for runs that translate.

    It may still compute for clients that have gone: the end of Python would crash that thread.

    Raises: ValueError if a token or a run is missing, or the address cannot be used.
    """
    token = checked_token(host)
    allowed = checked_names(host, allowed_hosts)
    with listening_socket(host, port) as listener:
        runs = []
        for folder in folders:
            say(f"loading {folder}")
            runs.append(load(folder, **weights))
        names = run_names([run.folder for run in runs])
        hosts = (*LOOPBACK, *allowed) if host in LOOPBACK else None
        app = make_app(dict(zip(names, runs, strict=True)), limits, token=token, hosts=hosts, engine=engine)
        service = app.state.service
        for served in service.runs.by_name.values() if warm_up else ():
            served.warm_up(say)
        shown = f"[{host}]" if ":" in host else host
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            http=WatchedConnection,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=limits.connections + 1,
            timeout_graceful_shutdown=int(limits.seconds + DRAIN_EXTRA),
        )
        server = Server(config)
        server.announce = lambda: say(
            f"serving {', '.join(names)} at http://{shown}:{listener.getsockname()[1]} (Ctrl-C or SIGTERM ends it)"
        )

        def end(number: int, frame: FrameType | None) -> None:
            """Handles a signal that comes before uvicorn handles it, and the one that uvicorn raises again once it has drained."""
            server.should_exit = True

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            server.run(sockets=[listener])
        finally:
            stopped: bool = service.close(LAST_CALL)
            say(f"stopped; {service.metrics.summary()}")
            for number, handler in before.items():
                signal.signal(number, handler)
    return stopped


class Server(uvicorn.Server):
    """uvicorn's server, which calls `announce` once it takes requests and handles signals."""

    announce: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.announce()


class WatchedConnection(HTTPProtocol):
    """uvicorn's connection, which is closed if the headers of a request take longer than `seconds`; uvicorn has no such limit."""

    seconds = 20.0
    """Counted from the opening of the connection, or from the first byte of a later request."""
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.timer = self.loop.call_later(self.seconds, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.stop_timer()  # the headers are whole
        elif self.timer is None:
            self.timer = self.loop.call_later(self.seconds, self.transport.close)

    def connection_lost(self, error: Exception | None) -> None:
        self.stop_timer()
        super().connection_lost(error)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None


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
