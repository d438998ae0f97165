"""The application: the page, health, metrics and both interfaces over the runs, without a socket."""

import functools
from collections.abc import Collection, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from flaxformer_lite.run import Run
from flaxformer_lite.tools.pages import STYLE, policy_digest, resource
from flaxformer_lite.tools.serve.endpoints import Endpoints
from flaxformer_lite.tools.serve.guard import Guard
from flaxformer_lite.tools.serve.limits import Limits, Refusal
from flaxformer_lite.tools.serve.metrics import CLIENT_GONE, CONTENT_TYPE
from flaxformer_lite.tools.serve.service import Service, failure


def make_app(
    runs: dict[str, Run],
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
    engine: Mapping[str, object] = {},
) -> Starlette:
    """Returns the application that serves runs by their names; its `state.service.worker` is to be closed at the end.

    `token`: the bearer token that requests must have; None: none. `hosts`: names that Host headers may have; None: any.
    `engine`: keywords of `Run.searching`.
    """
    service = Service(runs, limits or Limits(), engine)
    routes = [
        Route("/", show_page),
        Route("/health", health),
        Route("/metrics", show_metrics),
        *Endpoints(service).routes(),
    ]
    paths = {route.path for route in routes}
    guard = Middleware(Guard, token=token, hosts=hosts, paths=paths, metrics=service.metrics)
    handlers: dict[Any, Any] = {
        Refusal: refused,
        HTTPException: refused_by_starlette,
        ClientDisconnect: lambda request, error: Response(status_code=CLIENT_GONE),  # only the metrics show it
        Exception: lambda request, error: refused(request, failure()),
    }
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)
    app.state.service = service
    return app


@functools.cache
def server_page() -> tuple[str, str]:
    """Returns the page, and the content security policy of its response: no other script runs, and nothing else is loaded."""
    script = resource("flaxformer_lite.tools.serve", "page.js")
    style = STYLE + resource("flaxformer_lite.tools.serve", "page.css")
    text = resource("flaxformer_lite.tools.serve", "page.html")
    policy = (
        f"default-src 'none'; img-src data:; connect-src 'self'; style-src '{policy_digest(style)}'; "
        f"script-src '{policy_digest(script)}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.replace("/*style*/", style).replace("/*script*/", script), policy


async def show_page(request: Request) -> Response:
    """The page to try the runs."""
    text, policy = server_page()
    return HTMLResponse(text, headers={"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})


async def health(request: Request) -> Response:
    """Whether the worker lives."""
    alive = request.app.state.service.worker.thread.is_alive()
    return JSONResponse({"status": "ok" if alive else "the worker has ended"}, 200 if alive else 503)


async def show_metrics(request: Request) -> Response:
    """Prometheus' text."""
    return Response(request.app.state.service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def refused(request: Request, refusal: Refusal) -> Response:
    """Returns the response to a refused request."""
    return JSONResponse(refusal.as_json(), refusal.status, refusal.headers)


def refused_by_starlette(request: Request, error: HTTPException) -> Response:
    """Returns the response to a request for an endpoint or a method that does not exist."""
    allowed = (error.headers or {}).get("Allow")
    remedy = f": use {allowed.removesuffix(', HEAD').removeprefix('HEAD, ')}" if allowed else ""
    response = refused(
        request, Refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}{remedy}")
    )
    response.headers.update(error.headers or {})
    return response
