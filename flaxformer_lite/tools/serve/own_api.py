"""The server's own endpoints, `/api/…`: what a run does under the names of its commands."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flaxformer_lite.tools.serve import requests
from flaxformer_lite.tools.serve.openai_shapes import event
from flaxformer_lite.tools.serve.requests import as_list
from flaxformer_lite.tools.serve.served_run import Answer, ServedRun
from flaxformer_lite.tools.serve.service import Service


class OwnApi:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        """Returns the endpoints with their paths."""
        endpoints = {
            "translate": self.translate,
            "generate": self.generate,
            "fill-mask": self.fill_mask,
            "classify": self.classify,
            "embed": self.embed,
            "attention": self.attention,
        }
        posts = [Route(f"/api/{name}", endpoint, methods=["POST"]) for name, endpoint in endpoints.items()]
        return [Route("/api/runs", self.describe), *posts]

    async def describe(self, request: Request) -> Response:
        """The runs, their tasks and the limits."""
        runs = [
            {
                "name": run.name,
                "about": run.about,
                "tasks": run.tasks,
                "chat": run.chat is not None,
                "reads_target": run.reads_target,
                "beam_size": run.run.config.decode.beam_size,
                "example": run.example,
            }
            for run in self.service.runs.by_name.values()
        ]
        return JSONResponse({"runs": runs, "limits": vars(self.service.limits)})

    async def translate(self, request: Request) -> Response:
        """Translations with scores, best first."""
        asked = await self.service.parsed(request, requests.TranslateRequest)
        run, texts = self.service.runs.find(asked.run, "translate"), as_list(asked.texts)
        options = {"max_new_tokens": asked.max_new_tokens, "beam_size": asked.beam_size}
        job = await self.service.made(run.translation_job, texts, texts, **options, num_hypotheses=asked.num_hypotheses)
        most = asked.num_hypotheses or run.run.config.decode.num_hypotheses
        found = await self.service.answers(request, job)
        return hypotheses(run, found, most, await asyncio.to_thread(run.unknown, texts))

    async def generate(self, request: Request) -> Response:
        """Texts that continue prompts, with scores; one as a stream on request."""
        asked = await self.service.parsed(request, requests.GenerateRequest)
        run = self.service.runs.find(asked.run, "generate")
        job = await self.service.generation(run, asked)
        if asked.stream:
            return await self.service.streamed(
                request, job, lambda part: event({"text": part}), lambda answer: event(answer._asdict())
            )
        found = await self.service.answers(request, job)
        return hypotheses(run, found, max(map(len, found)))

    async def fill_mask(self, request: Request) -> Response:
        """Candidates for each mask of each text, most probable first."""
        asked = await self.service.parsed(request, requests.FillMaskRequest)
        run, texts = self.service.runs.find(asked.run, "fill-mask"), as_list(asked.texts)
        job = await self.service.made(run.text_job, texts, "fill-mask", texts)
        found = await self.service.answers(request, job)
        answers = [[[c._asdict() for c in mask[: asked.top]] for mask in text] for text in found]
        return JSONResponse({"run": run.name, "answers": answers})

    async def classify(self, request: Request) -> Response:
        """The class of each text or pair, with the probability of every class."""
        asked = await self.service.parsed(request, requests.ClassifyRequest)
        run, given = self.service.runs.find(asked.run, "classify"), asked.texts
        texts: list[str | tuple[str, ...]] = [given] if isinstance(given, str) else [
            text if isinstance(text, str) else tuple(text) for text in given
        ]  # fmt: skip
        job = await self.service.made(run.text_job, texts, "classify", texts)
        return JSONResponse(
            {"run": run.name, "answers": [c._asdict() for c in await self.service.answers(request, job)]}
        )

    async def embed(self, request: Request) -> Response:
        """The vector of each text."""
        asked = await self.service.parsed(request, requests.EmbedRequest)
        run, texts = self.service.runs.find(asked.run, "embed"), as_list(asked.texts)
        job = await self.service.made(run.text_job, texts, "embed", texts)
        return JSONResponse(
            {"run": run.name, "answers": [v.tolist() for v in await self.service.answers(request, job)]}
        )

    async def attention(self, request: Request) -> Response:
        """The attention weights of a source and its translation, of a prompt and its continuation, or of a text."""
        asked = await self.service.parsed(request, requests.AttentionRequest)
        run = self.service.runs.reader(asked.run, of_target=asked.target is not None)
        job = await self.service.made(run.attention_job, [asked.source], asked.source, asked.target)
        return JSONResponse((await self.service.answers(request, job))[0])


def hypotheses(
    run: ServedRun, answers: Sequence[Sequence[Answer]], most: int, warnings: Sequence[str] = ()
) -> Response:
    """Returns the response with the best answers to each text, and with warnings if there are any."""
    shown = [[{"text": a.text, "score": a.score, "finish": a.finish} for a in text[:most]] for text in answers]
    return JSONResponse({"run": run.name, "answers": shown} | ({"warnings": list(warnings)} if warnings else {}))
