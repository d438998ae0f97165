"""The endpoints: the server's own, `/api/…`, by the names of commands, and OpenAI's interface, `/v1/…`, for clients that exist.

Answers of the latter are JSON, whole and in parts.
"""

import asyncio
import base64
import functools
import itertools
import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flaxformer_lite.files.chats.chat import encode_marked
from flaxformer_lite.tasks import tasks
from flaxformer_lite.tasks.embed.answers import Embed
from flaxformer_lite.tasks.task import plain
from flaxformer_lite.tools.serve import requests
from flaxformer_lite.tools.serve.limits import Refusal
from flaxformer_lite.tools.serve.requests import as_list, prompt_list
from flaxformer_lite.tools.serve.runs import ServedRun, WrittenText
from flaxformer_lite.tools.serve.service import Service, event
from flaxformer_lite.tools.serve.worker import Job

CompletionKind = Literal["text_completion", "chat.completion"]


class Endpoints:
    def __init__(self, service: Service) -> None:
        self.service, self.shapes = service, [requests.TaskShape(task) for task in tasks()]

    def routes(self) -> list[Route]:
        posts: dict[str, Any] = {shape.task.name: functools.partial(self.answer, shape) for shape in self.shapes}
        posts |= {"translate": self.translate, "generate": self.generate, "attention": self.attention}
        posts = {f"/api/{name}": endpoint for name, endpoint in posts.items()} | {
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
            "/v1/embeddings": self.embeddings,
        }
        gets = {"/api/runs": self.describe, "/v1/models": self.models, "/v1/models/{name:path}": self.model}
        routes = [Route(path, endpoint) for path, endpoint in gets.items()]
        return [*routes, *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items())]

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
        run = self.service.runs.find(asked.run, "translate")
        texts = as_list(asked.texts)
        options: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "beam_size": asked.beam_size}
        options |= {"direction": (asked.from_, asked.to), "prefix": asked.prefix}
        options |= {"terms": asked.terms, "placeholders": asked.placeholders}
        job = await self.service.made(run.translation_job, texts, texts, **options, num_hypotheses=asked.num_hypotheses)
        most = asked.num_hypotheses or run.run.config.decode.num_hypotheses
        answered = await self.service.answers(request, job)
        return hypotheses_response(run, answered, most, await asyncio.to_thread(run.unknown, texts))

    async def generate(self, request: Request) -> Response:
        """Texts that continue prompts, with scores; one as a stream on request."""
        asked = await self.service.parsed(request, requests.GenerateRequest)
        run = self.service.runs.find(asked.run, "generate")
        prompts = prompt_list(asked.texts)
        job = await self.service.generation(
            run, prompts, asked, asked.max_new_tokens, asked.num_hypotheses, stream=asked.stream
        )
        if asked.stream:
            return await self.service.streamed(
                request, job, lambda text: event({"text": text}), lambda answer: event(answer._asdict())
            )
        answered = await self.service.answers(request, job)
        return hypotheses_response(run, answered, max(map(len, answered)))

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
        runs = self.service.runs
        of_target = asked.target is not None
        fitting = (run.name for run in runs.by_name.values() if run.reads_target == of_target)
        run = runs.find(asked.run or next(fitting, None), None)
        options = {"direction": (asked.from_, asked.to)}
        job = await self.service.made(run.attention_job, [asked.source], asked.source, asked.target, **options)
        return JSONResponse((await self.service.answers(request, job))[0])

    # OpenAI's interface -------------------------------------------------------------------------------------------------

    def model_card(self, name: str) -> dict[str, Any]:
        """Returns the entry of a run in the list of models."""
        return {"id": name, "object": "model", "created": self.service.started, "owned_by": "flaxformer_lite"}

    async def models(self, request: Request) -> Response:
        cards = [self.model_card(name) for name in self.service.runs.by_name]
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, request: Request) -> Response:
        return JSONResponse(self.model_card(self.service.runs.find(request.path_params["name"], None).name))

    async def completions(self, request: Request) -> Response:
        """Completions; of a run that translates, translations."""
        asked = await self.service.parsed(request, requests.CompletionRequest)
        run = self.service.runs.find(asked.model, None)
        prompts = prompt_list(asked.prompt)
        names_languages = asked.from_ is not None or asked.to is not None
        if "translate" not in run.tasks or ("generate" in run.tasks and not names_languages):
            if names_languages:
                raise Refusal(422, f"{run.name} does not translate: leave out from and to")
            return await self.completed(request, run, "text_completion", asked, prompts, asked.max_tokens)
        self.service.check_most("n", asked.n)
        if asked.stream or asked.decode or asked.stop or asked.seed is not None:
            raise Refusal(422, f"{run.name} translates: leave out stream, stop, seed and the settings of sampling")
        if not all(isinstance(text, str) for text in prompts):
            raise Refusal(422, f"{run.name} translates texts, not token ids: send texts", param="prompt")
        num = asked.n or 1
        decode = run.run.config.decode
        beams = num if num > decode.beam_size and decode.sampling is None else None
        options: dict[str, Any] = {"max_new_tokens": asked.max_tokens, "beam_size": beams, "num_hypotheses": num}
        options["direction"] = asked.from_, asked.to
        job = await self.service.made(run.translation_job, prompts, prompts, **options)
        return self.completion("text_completion", run, job, await self.service.answers(request, job), num)

    async def chat(self, request: Request) -> Response:
        """The next message of a conversation, by the run's chat template."""
        asked = await self.service.parsed(request, requests.ChatRequest)
        run = self.service.runs.find(asked.model, "generate")
        continues = asked.continue_final_message
        if run.chat is None:
            message = f"{run.name} has no chat template that can be used: try /v1/completions"
            raise Refusal(404, message, code="model_not_found", param="model")
        if continues and asked.add_generation_prompt:
            raise Refusal(422, "continue_final_message and add_generation_prompt are both true: leave one of them out")
        begins = not continues if asked.add_generation_prompt is None else asked.add_generation_prompt
        options: dict[str, Any] = {"documents": asked.documents, "continue_final_message": continues}
        coming = run.chat.submit(asked.messages, request.state.deadline, **options, add_generation_prompt=begins)
        text = await self.service.before(request, asyncio.wrap_future(coming))
        (prompt,) = await asyncio.to_thread(encode_marked, [text], run.tokenizers.target)  # with the special ids
        most = asked.max_completion_tokens or asked.max_tokens
        return await self.completed(request, run, "chat.completion", asked, [prompt.ids], most)

    async def completed(
        self,
        request: Request,
        run: ServedRun,
        kind: CompletionKind,
        asked: requests.OpenAIRequest,
        prompts: Sequence[str | list[int]],
        most: int | None,
    ) -> Response:
        """Returns the response to a completion or a chat of at most `most` tokens, whole or as a stream."""
        self.service.runs.find(run.name, "generate")
        self.service.check_most("n", asked.n)
        num = None if asked.n == 1 else asked.n
        stream = bool(asked.stream)
        job = await self.service.generation(run, prompts, asked, most, num, stream=stream)
        if not stream:
            return self.completion(kind, run, job, await self.service.answers(request, job), asked.n or 1)
        include_usage = asked.stream_options is not None and asked.stream_options.include_usage
        events = CompletionEvents(kind, run.name, prompt_tokens(job), include_usage=include_usage)
        return await self.service.streamed(request, job, events.part, events.last, events.first())

    def completion(
        self, kind: CompletionKind, run: ServedRun, job: Job, answered: Sequence[Sequence[WrittenText]], most: int
    ) -> Response:
        """Returns the response with the `most` best answers to each prompt."""
        answers = list(itertools.chain.from_iterable(of_prompt[:most] for of_prompt in answered))
        choices: list[dict[str, Any]] = []
        for i, answer in enumerate(answers):
            if kind == "text_completion":
                content: dict[str, Any] = {"text": answer.text}
            else:
                content = {"message": {"role": "assistant", "content": answer.text, "refusal": None}}
            choices.append({"index": i, **content, "logprobs": None, "finish_reason": answer.finish})
        counts = token_usage(prompt_tokens(job), sum(answer.num_tokens for answer in answers))
        return JSONResponse({**head(kind, kind, run.name), "choices": choices, "usage": counts})

    async def embeddings(self, request: Request) -> Response:
        """The vector of each text: numbers, or the base64 of little-endian float32."""
        asked = await self.service.parsed(request, requests.EmbeddingsRequest)
        run = self.service.runs.find(asked.model, "embed")
        embed = Embed(asked.prompt, asked.dimensions)
        texts = as_list(asked.input)
        vectors = await self.service.answers(request, await self.service.made(run.task_job, texts, embed, texts))
        read = [embed.before(run.run.text_model) + text for text in texts]
        tokens = sum(map(len, await asyncio.to_thread(run.tokenizers.source.encode_batch, read)))
        data: list[dict[str, Any]] = []
        for i, vector in enumerate(vectors):
            written = vector.astype(float).tolist()
            if asked.encoding_format == "base64":
                written = base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
            data.append({"object": "embedding", "index": i, "embedding": written})
        counts = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "data": data, "model": run.name, "usage": counts})


def hypotheses_response(
    run: ServedRun, answers: Sequence[Sequence[WrittenText]], most: int, warnings: Sequence[str] = ()
) -> Response:
    """Returns the response with the best answers to each text, and with warnings if there are any."""
    shown = []
    for of_text in answers:
        best = of_text[:most]
        shown.append([{"text": answer.text, "score": answer.score, "finish": answer.finish} for answer in best])
    content: dict[str, object] = {"run": run.name, "answers": shown}
    if warnings:
        content["warnings"] = list(warnings)
    return JSONResponse(content)


class CompletionEvents:
    """The events of one streamed answer."""

    def __init__(self, kind: CompletionKind, model: str, prompt_tokens: int, *, include_usage: bool) -> None:
        self.chat = kind == "chat.completion"
        self.prompt_tokens = prompt_tokens
        self.include_usage = include_usage
        self.head = head(kind, "chat.completion.chunk" if self.chat else kind, model)

    def chunk(self, content: dict[str, object], finish: str | None = None) -> str:
        """Returns the event of a part."""
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish}
        return event({**self.head, "choices": [choice], **({"usage": None} if self.include_usage else {})})

    def first(self) -> str:
        """Returns the event before the first part: in a chat who speaks."""
        return self.chunk({"delta": {"role": "assistant", "content": ""}}) if self.chat else ""

    def part(self, text: str) -> str:
        """Returns the event of a part of the text."""
        return self.chunk({"delta": {"content": text}} if self.chat else {"text": text})

    def last(self, answer: WrittenText) -> str:
        """Returns the events after the last part: why the text ended, and the tokens on request."""
        events = self.chunk({"delta": {}} if self.chat else {"text": ""}, answer.finish)
        if self.include_usage:
            events += event({**self.head, "choices": [], "usage": token_usage(self.prompt_tokens, answer.num_tokens)})
        return events + "data: [DONE]\n\n"


def head(kind: CompletionKind, name: str, model: str) -> dict[str, Any]:
    """Returns the fields that begin a response."""
    unique = f"{'cmpl' if kind == 'text_completion' else 'chatcmpl'}-{secrets.token_hex(12)}"
    return {"id": unique, "object": name, "created": int(time.time()), "model": model}


def token_usage(prompt: int, completion: int) -> dict[str, int]:
    """Returns the numbers of tokens that were read and written."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def prompt_tokens(job: Job) -> int:
    return sum(len(prompt.request.source) for prompt in job.items)
