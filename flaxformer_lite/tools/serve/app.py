"""The application: the page, health, metrics and both interfaces over the runs, without a socket."""

from collections.abc import Collection
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from flaxformer_lite.run import Run
from flaxformer_lite.tools.serve.guard import Guard
from flaxformer_lite.tools.serve.limits import Limits
from flaxformer_lite.tools.serve.metrics import CLIENT_GONE, CONTENT_TYPE
from flaxformer_lite.tools.serve.openai_api import OpenAIApi
from flaxformer_lite.tools.serve.own_api import OwnApi
from flaxformer_lite.tools.serve.page import page
from flaxformer_lite.tools.serve.refusals import Refusal
from flaxformer_lite.tools.serve.service import Service, failure


def make_app(
    runs: dict[str, Run],
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Collection[str] | None = None,
) -> Starlette:
    """Returns the application that serves runs by their names; its `state.service.worker` is to be closed at the end.

    `token`: the bearer token that requests must have; None: none. `hosts`: names that Host headers may have; None: any.
    """
    limits = limits or Limits()
    service = Service(runs, limits)
    routes = [
        Route("/", show_page),
        Route("/health", health),
        Route("/metrics", show_metrics),
        *OwnApi(service).routes(),
        *OpenAIApi(service).routes(),
    ]
    paths = {route.path for route in routes}
    guard = Middleware(
        Guard, token=token, hosts=hosts, paths=paths, metrics=service.metrics, connections=limits.connections
    )
    handlers: dict[Any, Any] = {
        Refusal: refused,
        HTTPException: refused_by_starlette,
        ClientDisconnect: gone_client,
        Exception: failed,
    }
    app = Starlette(routes=routes, middleware=[guard], exception_handlers=handlers)
    app.state.service = service
    return app


async def show_page(request: Request) -> Response:
    """The page."""
    text, policy = page()
    return HTMLResponse(text, headers={"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})


async def health(request: Request) -> Response:
    """Whether the worker lives."""
    alive = request.app.state.service.worker.thread.is_alive()
    return JSONResponse({"status": "ok" if alive else "the worker has ended"}, 200 if alive else 503)


async def show_metrics(request: Request) -> Response:
    """Prometheus' text."""
    return Response(request.app.state.service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


async def refused(request: Request, refusal: Refusal) -> Response:
    """Returns the response to a refused request."""
    return JSONResponse(refusal.as_json(), refusal.status, refusal.headers)


async def refused_by_starlette(request: Request, error: HTTPException) -> Response:
    """Returns the response to a request for an endpoint or a method that is not there."""
    allowed = (error.headers or {}).get("Allow", "")
    remedy = f": use {' or '.join(sorted(set(allowed.split(', ')) - {'HEAD'}))}" if allowed else ""
    message = f"{request.method} {request.url.path}: {error.detail}{remedy}"
    response = await refused(request, Refusal(error.status_code, message))
    response.headers.update(error.headers or {})
    return response


async def gone_client(request: Request, error: ClientDisconnect) -> Response:
    """Returns a response that nobody reads, with the status for the metrics."""
    return Response(status_code=CLIENT_GONE)


async def failed(request: Request, error: Exception) -> Response:
    """Returns the response to a request that the server could not answer; the reason is logged."""
    return await refused(request, failure())
