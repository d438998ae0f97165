"""From a request to its answer: checks, the queue, deadlines, clients that go, streams. The event loop only waits here."""

import asyncio
import functools
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import jax
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from flaxformer_lite.inference.batches import well_filled
from flaxformer_lite.run import Run
from flaxformer_lite.tools.serve.job_queue import Job, QueueFull
from flaxformer_lite.tools.serve.limits import Limits
from flaxformer_lite.tools.serve.metrics import Metrics
from flaxformer_lite.tools.serve.openai_shapes import event
from flaxformer_lite.tools.serve.refusals import Refusal
from flaxformer_lite.tools.serve.requests import Asked, GenerateRequest, as_list, parse
from flaxformer_lite.tools.serve.served_run import Answer, ServedRun, ServedRuns
from flaxformer_lite.tools.serve.worker import Stopped, Worker

Result = TypeVar("Result")
Shape = TypeVar("Shape", bound=Asked)
CALL_ROWS = {"cpu": 3}
"""Cost of a call in rows. On a CPU 1, 8 and 64 rows of the quick start take 6, 15 and 107 ms; elsewhere rows cost little."""
OVER = None
"""Ends the parts of a stream."""


class Service:
    """The runs, their worker, and the way of a request to its answer."""

    def __init__(self, runs: dict[str, Run], limits: Limits) -> None:
        self.limits, self.metrics, self.started = limits, Metrics(), int(time.time())
        self.runs = ServedRuns([ServedRun(name, run, limits) for name, run in runs.items()])
        self.worker = Worker(
            self.runs,
            max_waiting=limits.queue,
            max_together=limits.texts,
            max_streams=limits.streams,
            together=functools.partial(well_filled, call_rows=CALL_ROWS.get(jax.default_backend(), math.inf)),
            observe=self.metrics.observe_call,
        )
        self.metrics.watch(self.worker)

    def close(self, seconds: float) -> bool:
        """Ends the worker, and returns whether it ended within `seconds`."""
        return self.worker.close(seconds)

    async def parsed(self, request: Request, shape: type[Shape]) -> Shape:
        """Returns the body of a request. Raises: Refusal if it is too long, too slow, or of another shape."""
        chunks, size = [], 0
        request.state.deadline = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(request.state.deadline):
                async for chunk in request.stream():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > self.limits.body_bytes:
                        raise Refusal(
                            413, f"the body has more than {self.limits.body_bytes:,} bytes: send fewer or shorter texts"
                        )
        except TimeoutError:
            raise Refusal(
                408, f"the body did not arrive within {self.limits.seconds:g} seconds: send it at once"
            ) from None
        return parse(shape, b"".join(chunks))

    async def made(self, make: Callable[..., Job], texts: Sequence[Any], *arguments: Any, **options: Any) -> Job:
        """Returns the job of a request, made in another thread: it tokenizes. Raises: Refusal for a mistake in the request."""
        if not texts:
            raise Refusal(422, "there is no text: send at least one")
        if len(texts) > self.limits.texts:
            raise Refusal(413, f"there are {len(texts)} texts: send at most {self.limits.texts} in a request")
        for name in ("max_new_tokens", "beam_size", "num_hypotheses"):
            self.check_most(name, options.get(name))
        try:
            return await asyncio.to_thread(make, *arguments, **options)
        except ValueError as error:
            in_fields = re.sub(r"\bdecode\.(sampling\.)?", "", str(error))  # a request's fields have the short names
            raise Refusal(422, in_fields) from None

    def check_most(self, name: str, count: int | None) -> None:
        """Raises: Refusal if a request asks for more new tokens, beams or answers than the server allows; `name` is its field."""
        most = self.limits.new_tokens if name == "max_new_tokens" else self.limits.beam_size
        if count is not None and count > most:
            raise Refusal(422, f"{name} is {count}: this server allows at most {most}; lower it", param=name)

    async def answers(self, request: Request, job: Job) -> list[Any]:
        """Returns the answer to each item of a job. Raises: Refusal if there is no room or no time; ClientDisconnect."""
        self.submit(job)
        answer = asyncio.wrap_future(job.future)
        try:
            return await self.before(request, answer)
        finally:
            answer.cancel()
            self.worker.abandon(job)

    def submit(self, job: Job) -> None:
        """Passes a job to the worker. Raises: Refusal if there is no room, or the server stops."""
        try:
            self.worker.submit(job)
        except QueueFull:
            message = f"the queue is full ({self.limits.queue} texts): try again, or send fewer texts in a request"
            raise Refusal(429, message, code="queue_full", retry_after=1) from None
        except Stopped:
            raise stopping() from None

    async def before(self, request: Request, answer: asyncio.Future[Result]) -> Result:
        """Returns an answer if it comes in time and before the client goes. Raises: Refusal, ClientDisconnect."""
        gone, seconds = asyncio.ensure_future(disconnected(request)), request.state.deadline - answer.get_loop().time()
        try:
            waited: set[asyncio.Future[Any]] = {answer, gone}
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if gone.done():
                raise ClientDisconnect
            message = (
                f"there was no answer within {self.limits.seconds:g} seconds: try again, as the first answer of its kind "
                "takes longer, or send fewer or shorter texts"
            )
            raise Refusal(504, message, code="timeout", retry_after=1)
        except Stopped:
            raise stopping() from None
        finally:
            gone.cancel()

    async def generation(self, run: ServedRun, asked: GenerateRequest) -> Job:
        """Returns the job of continuing prompts."""
        prompts, num = asked.prompts, asked.num_hypotheses or 1
        self.check_most("num_hypotheses", num)
        if asked.stream and (num > 1 or len(prompts) > 1):
            raise Refusal(422, f"there are {len(prompts)} prompts and {num} texts for each: one text can be streamed")
        stop = as_list(asked.stop)
        options = {"max_new_tokens": asked.max_new_tokens, "seed": asked.seed, "stop": stop}
        job = await self.made(run.generation_job, prompts, prompts, asked.decode, **options)
        settings = job.items[0].settings
        if asked.stream and (settings.beam_size > 1 or settings.num_hypotheses > 1):
            raise Refusal(
                422, "the best answer of a beam is known at its end only: leave out stream, or set temperature"
            )
        return job

    async def streamed(
        self, request: Request, job: Job, part: Callable[[str], str], last: Callable[[Answer], str], first: str = ""
    ) -> Response:
        """Returns a response of server-sent events. Errors before the first part have a status of their own."""
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[str | None]()
        job.emit = lambda text: void(loop.call_soon_threadsafe(parts.put_nowait, text))
        job.future.add_done_callback(lambda _: void(loop.call_soon_threadsafe(parts.put_nowait, OVER)))

        async def events() -> AsyncIterator[str]:
            try:
                yield first
                text: str | None = begin
                while text is not OVER:
                    if text:
                        yield part(text)
                    async with asyncio.timeout_at(request.state.deadline):
                        text = await parts.get()
                yield last(job.future.result())
            except TimeoutError:
                yield event(Refusal(504, "the text did not end in time: ask for fewer tokens").as_json())
            except Stopped:
                yield event(stopping().as_json())
            except Exception:  # the response has begun: an event in place of a status
                logging.getLogger("uvicorn.error").exception("a stream could not be continued")
                yield event(failure().as_json())
            finally:
                self.worker.abandon(job)

        self.submit(job)
        waiting = asyncio.ensure_future(parts.get())
        try:
            begin = await self.before(request, waiting)
            if begin is OVER:
                job.future.result()  # raises what went wrong
        except BaseException:
            waiting.cancel()
            job.future.cancel()
            self.worker.abandon(job)
            raise
        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def void(_: object) -> None:
    """Returns nothing."""


def stopping() -> Refusal:
    """Returns the refusal of a server that stops."""
    return Refusal(503, "the server is stopping: try again later", code="stopping", retry_after=5)


def failure() -> Refusal:
    """Returns the refusal in place of an answer that failed; the log has the reason, which is no client's business."""
    return Refusal(500, "the server could not answer: its log tells why")


async def disconnected(request: Request) -> None:
    """Returns once the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
