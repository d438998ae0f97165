"""From a request to its answer: checks, the queue, deadlines, clients that go, streams. The event loop only waits here."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.run import Run
from flaxformer_lite.tools.serve.limits import Limits, Refusal
from flaxformer_lite.tools.serve.metrics import Metrics
from flaxformer_lite.tools.serve.requests import Asked, DecodingRequest, parse
from flaxformer_lite.tools.serve.runs import ServedRun, ServedRuns, WrittenText
from flaxformer_lite.tools.serve.worker import Job, Worker

Result = TypeVar("Result")
RequestT = TypeVar("RequestT", bound=Asked)


class Service:
    """The runs, their worker, and the way of a request to its answer."""

    def __init__(self, runs: dict[str, Run], limits: Limits, engine: Mapping[str, object] = {}) -> None:
        self.limits, self.metrics, self.started = limits, Metrics(), int(time.time())
        self.runs = ServedRuns([ServedRun(name, run, limits, engine) for name, run in runs.items()])
        self.worker = Worker(self.runs, limits, self.metrics.observe_call, self.runs.groups)
        self.metrics.watch(self.worker)

    def close(self, seconds: float) -> bool:
        """Ends the worker and the processes of chat templates; returns whether the worker ended in that time."""
        for run in self.runs.by_name.values():
            if run.chat is not None:
                run.chat.close()
        return self.worker.close(seconds)

    async def parsed(self, request: Request, shape: type[RequestT]) -> RequestT:
        """Returns the body of a request. Raises: Refusal if it is too long, too slow, or of another shape."""
        body, most = bytearray(), self.limits.body_bytes
        request.state.deadline = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(request.state.deadline):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise Refusal(413, f"the body has more than {most:,} bytes: send fewer or shorter texts")
        except TimeoutError:
            message = f"the body did not arrive within {self.limits.seconds:g} seconds: send it at once"
            raise Refusal(408, message) from None
        return parse(shape, bytes(body))

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
            in_fields = {"decode.sampling.": "", "decode.": ""}  # a request's fields have the short names
            mistake = Mistake.of(error).spelled(in_fields)
            raise Refusal(422, str(mistake), param=mistake.setting.rpartition(".")[2] or None) from None

    def check_most(self, name: str, count: int | None) -> None:
        """Raises: Refusal if a request asks for more new tokens, beams or answers than the server allows; `name` is its field."""
        most = self.limits.new_tokens if name == "max_new_tokens" else self.limits.beam_size
        if count is not None and count > most:
            raise Refusal(422, f"{name} is {count}: this server allows at most {most}; lower it", param=name)

    async def generation(
        self,
        run: ServedRun,
        prompts: Sequence[str | list[int]],
        asked: DecodingRequest,
        max_new_tokens: int | None,
        num_hypotheses: int | None,
        *,
        stream: bool,
    ) -> Job:
        """Returns the job of continuing prompts. Raises: Refusal if it cannot be streamed, but is to be."""
        counts = {"max_new_tokens": max_new_tokens, "num_hypotheses": num_hypotheses}
        job = await self.made(run.generation_job, prompts, prompts, asked, **counts)
        settings = job.items[0].request.settings
        if not stream:
            return job
        if len(prompts) > 1:
            raise Refusal(422, f"there are {len(prompts)} prompts, and one is streamed: send one", param="stream")
        if settings.num_hypotheses > 1:
            message = f"{settings.num_hypotheses} answers are asked for, and one is streamed: ask for one, or leave out stream"
            raise Refusal(422, message, param="stream")
        if settings.beam_size > 1:
            message = (
                f"beam_size is {settings.beam_size}, and a beam is not streamed: set temperature, or leave out stream"
            )
            raise Refusal(422, message, param="stream")
        return job

    async def answers(self, request: Request, job: Job) -> list[Any]:
        """Returns the answer to each item of a job. Raises: Refusal if there is no room or no time; ClientDisconnect."""
        self.worker.submit(job)
        answer = asyncio.wrap_future(job.future)
        try:
            return await self.before(request, answer)
        finally:
            answer.cancel()
            self.worker.abandon(job)

    async def before(self, request: Request, answer: asyncio.Future[Result]) -> Result:
        """Returns an answer if it comes in time and before the client goes. Raises: Refusal, ClientDisconnect."""
        gone = asyncio.ensure_future(disconnected(request))
        seconds = request.state.deadline - answer.get_loop().time()
        waited: set[asyncio.Future[Any]] = {answer, gone}
        try:
            await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if answer.done():
            return answer.result()
        if gone.done():
            raise ClientDisconnect
        message = (
            f"there was no answer within {self.limits.seconds:g} seconds: try again, as the first answer of its kind takes longer, "
            "or send fewer or shorter texts"
        )
        raise Refusal(504, message, code="timeout", retry_after=1)

    async def streamed(
        self,
        request: Request,
        job: Job,
        part: Callable[[str], str],
        last: Callable[[WrittenText], str],
        first: str = "",
    ) -> Response:
        """Returns a response of server-sent events. Errors before the first part have a status of their own."""
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[str | None]()  # None: it is over

        def emit(text: str | None) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, text)

        job.emit = emit
        job.future.add_done_callback(lambda _: emit(None))

        async def events() -> AsyncIterator[str]:
            try:
                yield first
                text: str | None = begin
                while text is not None:
                    if text:
                        yield part(text)
                    async with asyncio.timeout_at(request.state.deadline):
                        text = await parts.get()
                yield last(job.future.result())
            except TimeoutError:
                yield event(Refusal(504, "the text did not end in time: ask for fewer tokens").as_json())
            except Refusal as refusal:
                yield event(refusal.as_json())
            except Exception:  # the response has begun: an event in place of a status
                logging.getLogger("uvicorn.error").exception("a stream could not be continued")
                yield event(failure().as_json())
            finally:
                self.worker.abandon(job)

        self.worker.submit(job)
        waiting = asyncio.ensure_future(parts.get())
        try:
            begin = await self.before(request, waiting)
            if begin is None:
                job.future.result()  # raises what went wrong
        except BaseException:
            waiting.cancel()
            job.future.cancel()
            self.worker.abandon(job)
            raise
        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def event(content: object) -> str:
    """Returns JSON as a server-sent event."""
    return f"data: {json.dumps(content, ensure_ascii=False, allow_nan=False)}\n\n"


def failure() -> Refusal:
    """Returns the refusal in place of an answer that failed; the log has the reason, which is no client's business."""
    return Refusal(500, "the server could not answer: its log tells why")


async def disconnected(request: Request) -> None:
    """Returns once the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
