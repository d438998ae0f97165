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

from flaxformer_lite.tools.serve.limits import Refusal
from flaxformer_lite.tools.serve.metrics import CLIENT_GONE, Metrics

OPEN_PATHS = ("/", "/health")
"""Paths that need no token: the page holds no secret, and those who watch a server ask for its health."""


class Guard:
    """Refuses requests without the token or from strange pages.

    Args:
        token: the bearer token that requests must have; None: no token is needed.
        hosts: the names that a Host header may have; None: any.
        paths: the server's paths, for the metrics.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Collection[str] | None,
        paths: Collection[str],
        metrics: Metrics,
    ) -> None:
        self.app, self.token, self.hosts, self.paths, self.metrics = app, token, hosts, paths, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it with a refusal."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = CLIENT_GONE

        async def counted_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((b"x-content-type-options", b"nosniff"))
            await send(message)

        try:
            self.check(scope["path"], Headers(scope=scope))
            await self.app(scope, receive, counted_send)
        except Refusal as refusal:
            await JSONResponse(refusal.as_json(), refusal.status, refusal.headers)(scope, receive, counted_send)
        except Exception:  # answered outside, by `failed`
            status = 500 if status == CLIENT_GONE else status
            raise
        finally:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.observe_request(path, status, time.perf_counter() - started)

    def check(self, path: str, headers: Headers) -> None:
        """Raises: Refusal for a request that may not pass."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts is not None:
            name = host_name(host)
            if name not in self.hosts:
                message = (
                    f"{name!r} is not a name of this server: use {', '.join(self.hosts)}, or start it with --allow-host"
                )
                raise Refusal(403, message, code="host_not_allowed")
            same_origin = (
                origin is None or headers.get("sec-fetch-site") == "same-origin" or origin.partition("//")[2] == host
            )
            if not same_origin:
                message = (
                    f"{origin} is not this server, which the request names as {host}: open its own page; a proxy has to pass the "
                    "Host header on with its port"
                )
                raise Refusal(403, message, code="origin_not_allowed")
        if self.token is not None and path not in OPEN_PATHS:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                raise Refusal(401, "the token is missing or wrong: send the header Authorization: Bearer TOKEN")


def host_name(host: str) -> str:
    """Returns the name in a Host header, in lower case and without its port; nothing where the header is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
