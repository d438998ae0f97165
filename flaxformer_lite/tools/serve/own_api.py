"""The server's own endpoints, `/api/…`: what a run does under the names of its commands."""

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flaxformer_lite.tasks import tasks
from flaxformer_lite.tasks.task import plain
from flaxformer_lite.tools.serve import requests
from flaxformer_lite.tools.serve.requests import as_list, prompt_list
from flaxformer_lite.tools.serve.runs import ServedRun, WrittenText
from flaxformer_lite.tools.serve.service import Service, event


class OwnApi:
    def __init__(self, service: Service) -> None:
        self.service, self.shapes = service, [requests.TaskShape(task) for task in tasks()]

    def routes(self) -> list[Route]:
        posts: dict[str, Any] = {shape.task.name: functools.partial(self.answer, shape) for shape in self.shapes}
        posts |= {"translate": self.translate, "generate": self.generate, "attention": self.attention}
        routes = [Route(f"/api/{name}", endpoint, methods=["POST"]) for name, endpoint in posts.items()]
        return [Route("/api/runs", self.describe), *routes]

    async def describe(self, request: Request) -> Response:
        """The runs, their tasks, the limits, and the JSON schema of a request to each task."""
        runs = [
            {
                "name": run.name,
                "about": run.about,
                "tasks": run.tasks,
                "chat": run.chat is not None,
                "reads_target": run.reads_target,
                "beam_size": run.run.config.decode.beam_size,
                "languages": run.languages,
                "named_languages": run.named_languages,
            }
            for run in self.service.runs.by_name.values()
        ]
        schemas = {shape.task.name: shape.request.model_json_schema() for shape in self.shapes}
        return JSONResponse({"runs": runs, "limits": vars(self.service.limits), "requests": schemas})

    async def translate(self, request: Request) -> Response:
        """Translations with scores, best first."""
        asked = await self.service.parsed(request, requests.TranslateRequest)
        run, texts = self.service.runs.find(asked.run, "translate"), as_list(asked.texts)
        options: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "beam_size": asked.beam_size}
        options |= {"direction": (asked.from_, asked.to), "prefix": asked.prefix}
        options |= {"terms": asked.terms, "placeholders": asked.placeholders}
        job = await self.service.made(run.translation_job, texts, texts, **options, num_hypotheses=asked.num_hypotheses)
        most = asked.num_hypotheses or run.run.config.decode.num_hypotheses
        answered = await self.service.answers(request, job)
        return hypotheses(run, answered, most, await asyncio.to_thread(run.unknown, texts))

    async def generate(self, request: Request) -> Response:
        """Texts that continue prompts, with scores; one as a stream on request."""
        asked = await self.service.parsed(request, requests.GenerateRequest)
        run, prompts = self.service.runs.find(asked.run, "generate"), prompt_list(asked.texts)
        job = await self.service.generation(
            run, prompts, asked, asked.max_new_tokens, asked.num_hypotheses, stream=asked.stream
        )
        if asked.stream:
            return await self.service.streamed(
                request, job, lambda text: event({"text": text}), lambda answer: event(answer._asdict())
            )
        answered = await self.service.answers(request, job)
        return hypotheses(run, answered, max(map(len, answered)))

    async def answer(self, shape: requests.TaskShape, request: Request) -> Response:
        """The answers of a task, or its one answer to a request that is one of what is asked."""
        given = await self.service.parsed(request, shape.request)
        run, task, asked = self.service.runs.find(given.run, shape.task.name), *shape.read(given)
        texts = range(sum(map(task.count, asked)))
        answers = plain(await self.service.answers(request, await self.service.made(run.task_job, texts, task, asked)))
        return JSONResponse({"run": run.name, "answers": answers if task.field else answers[0]})

    async def attention(self, request: Request) -> Response:
        """The attention weights of a source and its translation, of a prompt and its continuation, or of a text."""
        asked = await self.service.parsed(request, requests.AttentionRequest)
        runs, of_target = self.service.runs, asked.target is not None
        fitting = (run.name for run in runs.by_name.values() if run.reads_target == of_target)
        run = runs.find(asked.run or next(fitting, None), None)
        options = {"direction": (asked.from_, asked.to)}
        job = await self.service.made(run.attention_job, [asked.source], asked.source, asked.target, **options)
        return JSONResponse((await self.service.answers(request, job))[0])


def hypotheses(
    run: ServedRun, answers: Sequence[Sequence[WrittenText]], most: int, warnings: Sequence[str] = ()
) -> Response:
    """Returns the response with the best answers to each text, and with warnings if there are any."""
    shown = [[{"text": a.text, "score": a.score, "finish": a.finish} for a in text[:most]] for text in answers]
    return JSONResponse({"run": run.name, "answers": shown} | ({"warnings": list(warnings)} if warnings else {}))
