"""A run for lm-evaluation-harness (extra `lm-eval`), and its command line: `python -m flaxformer_lite.tools.ops.harness run …`.

Reference: Biderman et al. 2024, arXiv:2405.14782. The methods' names and their meaning are those of `lm_eval.api.model`.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from flaxformer_lite.inference.encoder import BatchPredictor
from flaxformer_lite.inference.generation import (
    check_generates,
    decode_after,
    encode_prompt,
    truncate_at_stop,
    watch_stops,
)
from flaxformer_lite.model import Inputs, Transformer
from flaxformer_lite.run.run import Run, load
from flaxformer_lite.text import EncodedText

DEFAULT_NEW_TOKENS = 256
"""The most tokens of an answer where a task does not say; the harness's own models have the same."""


def token_log_probs(
    model: Transformer, variables: VariableDict, inputs: Inputs, following: Int[Array, "B P"]
) -> tuple[Float[Array, "B P"], Bool[Array, "B P"]]:
    """Returns the log-probability in nats of the token that follows each position, and whether it is the most probable one.

    `following` stands where `BatchPredictor` passes positions, one for each token of a text.
    """
    outputs: Any = model.apply(variables, inputs)
    logits = outputs.logits[:, : following.shape[1]].astype(jnp.float32)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), following[..., None], axis=-1)
    return chosen[..., 0], logits.argmax(-1) == following


class HarnessModel(TemplateLM):
    """A decoder as the harness asks models: log-probabilities of texts, and answers to prompts.

    Args:
        run: a run folder, its URL, or a `Run`.
        weights: last, best, ema or average:N; None: the config's.
        max_length: tokens that the model reads at most; a longer context loses its beginning. None: the rows of its position table,
            else `data.max_target_length`.
        options: the harness's own (batch size, device), which have no meaning here: `decode.batch_tokens` sets the batches.

    Raises: ValueError if the run is no decoder with a tokenizer.
    """

    def __init__(
        self, run: str | Run, weights: str | None = None, max_length: int | None = None, **options: Any
    ) -> None:
        super().__init__()
        self.run = run if isinstance(run, Run) else load(run, weights=weights)
        config = self.run.config
        check_generates(config.model)
        self.text_tokenizer = self.run.required_tokenizers.target
        self.max_length = max_length or config.model.positions.max_positions or config.data.max_target_length

    @cached_property
    def predictor(self) -> BatchPredictor:
        """The compiled scoring, one program for each shape of a batch."""
        batch_tokens = self.run.config.decode.batch_tokens
        return BatchPredictor(self.run.model, token_log_probs, batch_tokens, self.text_tokenizer.pad_id)

    @property
    def eot_token_id(self) -> int:
        """The token before a text that has no context: what prompts begin with."""
        return self.tok_encode("")[0]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Returns the ids of a text, after those that begin one unless the text has them or `add_special_tokens` is False."""
        ids = self.text_tokenizer.encode(string)
        if add_special_tokens is False or (ids and ids[:1] == self.text_tokenizer.as_prompt([])[:1]):
            return ids
        return encode_prompt(self.text_tokenizer, string, self.run.config.decode.bos_id)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Returns the log-probability of each continuation, and whether greedy search finds it.

        A request is a key for the harness's cache, the token ids of the context, and those of the continuation. The model reads
        all of them but the last.

        Raises: ValueError for a continuation that the model cannot read.
        """
        if (longest := max((len(continuation) for *_, continuation in requests), default=0)) > self.max_length:
            raise ValueError(
                f"a continuation has {longest} tokens, but the model reads {self.max_length} at most (max_length): leave out "
                "its task"
            )
        rows = [(context + continuation)[-self.max_length - 1 :] for _, context, continuation in requests]
        texts = [EncodedText(row[:-1], [0] * (len(row) - 1)) for row in rows]
        found = self.predictor.predict({"params": self.run.params}, texts, [row[1:] for row in rows])
        answers = []
        for (key, _, continuation), row, (log_probs, is_best) in zip(requests, rows, found, strict=True):
            span = slice(len(row) - 1 - len(continuation), len(row) - 1)
            answers.append((float(np.sum(log_probs[span], dtype=np.float64)), bool(is_best[span].all())))
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answers[-1])
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-probability of each whole text; one longer than `max_length` is scored in windows, each token once.

        The token that begins a text is not scored, also where the text has it.
        """
        totals = []
        for (text,) in (request.args for request in requests):
            tokens = self.tok_encode(text, add_special_tokens=False)
            tokens = tokens[1:] if tokens[:1] == [self.prefix_token_id] else tokens
            windows = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
            parts = [(None, *make_disjoint_window(window)) for window in windows]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(parts)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns the answer to each prompt, up to the first of its `until` texts; requests with equal settings share batches."""
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        answers = [""] * len(requests)
        for settings, members in groups.items():
            # Names such as max_new_tokens become max_gen_toks.
            chosen = normalize_gen_kwargs(json.loads(settings), DEFAULT_NEW_TOKENS)
            texts = self.answers([requests[i].args[0] for i in members], **chosen)
            for i, text in zip(members, texts, strict=True):
                answers[i] = text
                self.cache_hook.add_partial("generate_until", requests[i].args, text)
        return answers

    def answers(
        self,
        prompts: Sequence[str],
        until: str | Sequence[str] = (),
        max_gen_toks: int = DEFAULT_NEW_TOKENS,
        do_sample: bool = False,
        temperature: float = 0.0,
        **sampling: Any,
    ) -> list[str]:
        """Returns greedy answers, or samples where `do_sample` is set. `sampling`: settings of `Sampling`, such as top_p.

        Raises: ValueError if `max_gen_toks` leaves no room for a prompt.
        """
        choice: dict[str, Any] = {"sampling": None}  # an imported run has that of its generation_config.json
        if do_sample and temperature > 0:
            choice = {"temperature": temperature, **sampling}
        room = self.max_length - max_gen_toks
        if room < 1:
            raise ValueError(
                f"max_gen_toks is {max_gen_toks}: it must be below {self.max_length}, the tokens that the model reads, or no "
                "prompt is left; lower it, for example by --gen_kwargs max_gen_toks=64"
            )
        ids = [self.tok_encode(prompt)[-room:] for prompt in prompts]
        stop = [text for text in ([until] if isinstance(until, str) else until) if text]
        decoder = self.run.generation_decoder(max_new_tokens=max_gen_toks, beam_size=1, num_hypotheses=1, **choice)
        watch = watch_stops(self.text_tokenizer, ids, [stop] * len(ids))
        found = decoder.generate({"params": self.run.params}, ids, watch=watch)
        return [
            truncate_at_stop(decode_after(self.text_tokenizer, row, best.tokens), stop)
            for row, (best, *_) in zip(ids, found, strict=True)
        ]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    register_model("flaxformer_lite")(HarnessModel)
    cli_evaluate()
