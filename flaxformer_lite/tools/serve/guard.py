"""The guard before all endpoints: who may ask, and from which page. It also counts every request.

A browser sends a page's requests to any address, also to a loopback one. Two checks keep strange pages out. The Host header must be
a name of this server: an attacker's DNS may point another name to 127.0.0.1. The origin of the page must be this server.
"""

import hmac
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flaxformer_lite.tools.serve.limits import CONNECTIONS, LOOPBACK
from flaxformer_lite.tools.serve.metrics import CLIENT_GONE, Metrics
from flaxformer_lite.tools.serve.refusals import Refusal

PORTS = {"http": 80, "https": 443}
"""The port of a URL without one, by its scheme."""
OPEN_PATHS = ("/", "/health")
"""Paths that need no token: the page holds no secret, and those who watch a server ask for its health."""


class Guard:
    """Refuses requests without the token or from strange pages.

    Args:
        token: the bearer token that requests must have; None: no token is needed.
        hosts: the names that a Host header and an origin may have; None: any.
        paths: the server's paths, for the metrics.
        connections: the number of open connections beyond which requests are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Collection[str] | None,
        paths: Collection[str],
        metrics: Metrics,
        connections: int,
    ) -> None:
        self.app, self.token, self.hosts, self.paths, self.metrics = app, token, hosts, paths, metrics
        self.connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it with a refusal."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), CLIENT_GONE

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-content-type-options", b"nosniff"))
            await send(message)

        try:
            self.check(scope)
            await self.app(scope, receive, counted_send)
        except Refusal as refusal:
            response = JSONResponse(refusal.as_json(), refusal.status, refusal.headers)
            await response(scope, receive, counted_send)
        except Exception:  # answered outside, by `failed`
            status = 500 if status == CLIENT_GONE else status
            raise
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.observe_request(path, status, time.perf_counter() - started)

    def check(self, scope: Scope) -> None:
        """Raises: Refusal for a request that may not pass."""
        headers = Headers(scope=scope)
        if scope.get("state", {}).get(CONNECTIONS, 0) > self.connections:
            message = (
                f"more than {self.connections} connections are open: try again, or close those that are not needed"
            )
            raise Refusal(503, message, code="too_many_connections", retry_after=1)
        if self.hosts is not None:
            host, origin = headers.get("host", ""), headers.get("origin")
            for name in (host_name(host), *([] if origin is None else [host_name(origin.partition("//")[2])])):
                if name not in self.hosts:
                    message = f"{name!r} is not a name of this server: use {', '.join(self.hosts)}, or start it with --allow-host"
                    raise Refusal(403, message, code="host_not_allowed")
            if origin is not None and not is_own_page(origin, host):
                message = (
                    f"{origin} is not this server, which the request names as {host}: open its own page; a proxy has to pass the "
                    "Host header on with its port"
                )
                raise Refusal(403, message, code="origin_not_allowed")
        if self.token is not None and scope["path"] not in OPEN_PATHS:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                raise Refusal(401, "the token is missing or wrong: send the header Authorization: Bearer TOKEN")


def is_own_page(origin: str, host: str) -> bool:
    """Returns whether an origin, which has a name of this server, is that of its page; `host` is the Host header.

    On a loopback address the server itself speaks HTTP, at the port in the header. Any other name is that of a proxy, which may add
    TLS; it passes on its port, unless that is the default of its scheme.
    """
    scheme, _, address = origin.lower().partition("://")
    own_port = PORTS.get(scheme)
    port = port_of(address) or own_port
    if host_name(address) in LOOPBACK:
        return scheme == "http" and port == (port_of(host) or own_port)
    return own_port is not None and port in (own_port, port_of(host))


def port_of(host: str) -> int | None:
    """Returns the port in a Host header; None where it has none, or is malformed."""
    try:
        return urlsplit(f"//{host}").port
    except ValueError:
        return None


def host_name(host: str) -> str:
    """Returns the name in a Host header, in lower case and without its port; nothing where the header is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
