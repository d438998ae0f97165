"""OpenAI's interface, `/v1/…`, for clients that exist."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flaxformer_lite.tools.serve import openai_shapes as openai
from flaxformer_lite.tools.serve import requests
from flaxformer_lite.tools.serve.job_queue import Job
from flaxformer_lite.tools.serve.refusals import Refusal
from flaxformer_lite.tools.serve.requests import as_list
from flaxformer_lite.tools.serve.served_run import ServedRun
from flaxformer_lite.tools.serve.service import Service


class OpenAIApi:
    """The endpoints."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        """Returns the endpoints with their paths."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        """The runs as models."""
        cards = [openai.model_card(name, self.service.started) for name in self.service.runs.by_name]
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, request: Request) -> Response:
        """One run as a model."""
        name = request.path_params["name"]
        if name not in self.service.runs.by_name:
            raise Refusal(404, f"there is no run {name!r}: see /v1/models", code="model_not_found", param="model")
        return JSONResponse(openai.model_card(name, self.service.started))

    async def completions(self, request: Request) -> Response:
        """Completions; of a run that translates, translations."""
        asked = await self.service.parsed(request, requests.CompletionRequest)
        known = self.service.runs.by_name.get(asked.model)
        run = self.service.runs.find(asked.model, "translate" if known and "translate" in known.tasks else "generate")
        self.service.check_most("n", asked.n)
        generation = asked.generation(asked.prompt, asked.max_tokens)
        if "generate" in run.tasks:
            return await self.completed(request, run, "text_completion", asked, generation)
        if asked.stream or generation.decode.keys() - {"num_hypotheses"} or asked.stop or generation.seed is not None:
            raise Refusal(422, f"{run.name} translates: leave out stream, stop, seed and the settings of sampling")
        texts: list[Any] = generation.prompts
        if not all(isinstance(text, str) for text in texts):
            raise Refusal(422, f"{run.name} translates texts, not token ids: send texts", param="prompt")
        num, decode = asked.n or 1, run.run.config.decode
        beams = num if num > decode.beam_size and decode.sampling is None else None
        options = {"max_new_tokens": asked.max_tokens, "beam_size": beams, "num_hypotheses": num}
        job = await self.service.made(run.translation_job, texts, texts, **options)
        found = await self.service.answers(request, job)
        answers = [answer for text in found for answer in text[:num]]
        return JSONResponse(openai.completion("text_completion", run.name, answers, prompt_tokens(job)))

    async def chat(self, request: Request) -> Response:
        """The next message of a conversation, by the run's chat template."""
        asked = await self.service.parsed(request, requests.ChatRequest)
        run = self.service.runs.find(asked.model, "generate")
        self.service.check_most("n", asked.n)
        if run.chat is None:
            message = f"{run.name} has no chat template that can be used: try /v1/completions"
            raise Refusal(404, message, code="model_not_found", param="model")
        messages = [message.as_dict() for message in asked.messages]
        try:
            text = await asyncio.to_thread(run.chat.prompt, messages, **asked.template_options)
        except ValueError as error:
            raise Refusal(422, str(error), param="messages") from None
        ids = await asyncio.to_thread(run.tokenizers.target.encode, text)  # the template writes the special tokens
        most = asked.max_completion_tokens or asked.max_tokens
        return await self.completed(request, run, "chat.completion", asked, asked.generation(ids, most))

    async def completed(
        self,
        request: Request,
        run: ServedRun,
        kind: openai.Kind,
        asked: requests.Sampled,
        generation: requests.GenerateRequest,
    ) -> Response:
        """Returns the response to a completion or a chat, whole or as a stream."""
        job = await self.service.generation(run, generation)
        tokens = prompt_tokens(job)
        if generation.stream:
            include_usage = asked.stream_options is not None and asked.stream_options.include_usage
            events = openai.CompletionEvents(kind, run.name, tokens, include_usage=include_usage)
            return await self.service.streamed(request, job, events.part, events.last, events.first())
        found = await self.service.answers(request, job)
        answers = [answer for text in found for answer in text[: asked.n or 1]]
        return JSONResponse(openai.completion(kind, run.name, answers, tokens))

    async def embeddings(self, request: Request) -> Response:
        """The vector of each text, in OpenAI's shape."""
        asked = await self.service.parsed(request, requests.EmbeddingsRequest)
        run, texts = self.service.runs.find(asked.model, "embed"), as_list(asked.input)
        width = run.run.config.model.d_model
        if asked.dimensions not in (None, width):
            raise Refusal(422, f"dimensions is {asked.dimensions}, but the vectors have {width}: leave it out")
        job = await self.service.made(run.text_job, texts, "embed", texts)
        vectors = await self.service.answers(request, job)
        tokens = sum(map(len, await asyncio.to_thread(run.tokenizers.source.encode_batch, texts)))
        return JSONResponse(openai.embeddings(run.name, vectors, tokens, asked.encoding_format))


def prompt_tokens(job: Job) -> int:
    """Returns the tokens of all prompts of a job."""
    return sum(len(prompt.ids) for prompt in job.items)
