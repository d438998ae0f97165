"""Makes tests/fixtures/hf/drawn_decoding.json: drawn settings and prompts, and what Hugging Face's `generate` answers. By hand:

    python -m tests.makers.make_drawn_decoding --groups 42 --filters 120

The other side is torch and transformers; tests/support/drawn_decoding.py draws. A row is answered alone, without padding. A row
with a near tie, or in which no token is left to choose, is recorded as null.
"""

import argparse
import copy
import functools
import json
import os
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np
import torch
import transformers
from transformers import GenerationConfig
from transformers.generation import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tests.makers.make_hf_fixtures import MIN_GAP, BeamWatch
from tests.support.drawn_decoding import RECORDED, Group, draw_filter, draw_group, ends_of, logits_of
from tests.support.hf_folders import DATA

transformers.logging.set_verbosity_error()


@functools.cache
def model_of(label: str) -> Any:
    name = json.loads((DATA / label / "config.json").read_text())["architectures"][0]
    return getattr(transformers, name).from_pretrained(DATA / label, attn_implementation="eager").eval()


@torch.no_grad()
def their_answer(group: Group, row: dict[str, Any]) -> list[tuple[list[int], float]] | None:
    """Returns the answers to a row, best first, without their ends, with their scores; None where a choice was too close."""
    model, options, ends = model_of(group["model"]), copy.deepcopy(group["options"]), set(ends_of(group["options"]))
    model.generation_config = GenerationConfig(**options, output_scores=True, return_dict_in_generate=True)
    ids = torch.tensor([row["prompt"]])
    changes = {"max_new_tokens": row["limit"], "repetition_penalty": row["penalty"]}
    arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **changes}
    start = 1 if model.config.is_encoder_decoder else ids.shape[1]
    if options["num_beams"] == 1:
        out = model.generate(**arguments)
        best = [torch.sort(scores[0], descending=True).values for scores in out.scores]
        gap = min(float(values[0] - values[1]) for values in best)
        scores = [0.0]
    else:
        with BeamWatch(model, ends) as watch:
            out = model.generate(**arguments)
        for number in range(1, options["num_return_sequences"] + 1):
            watch.boundary(watch.final[0], number)
        gap, scores = watch.smallest, out.sequences_scores.tolist()
    if not gap >= MIN_GAP:  # also where no token was left, whose gap is no number
        return None
    answers = []
    for sequence, score in zip(out.sequences[:, start:].tolist(), scores, strict=True):
        length = next((i for i, token in enumerate(sequence) if token in ends), min(len(sequence), row["limit"]))
        if score > -1e8:  # else of a beam that does not exist, with ours: no answer
            answers.append((sequence[:length], round(score, 6)))
    return answers


def with_answers(group: Group) -> Group:
    """Returns the group with the library's answers."""
    return group | {"answers": [their_answer(group, row) for row in group["rows"]]}


def with_kept(case: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the case with the ids that the library's filters keep, in the order of `generate`; None where a sum is near top_p."""
    settings, scores = case["settings"], torch.from_numpy(logits_of(case))[None]
    scores = TemperatureLogitsWarper(settings["temperature"])(None, scores)
    if settings["top_k"]:
        scores = TopKLogitsWarper(settings["top_k"])(None, scores)
    if settings["top_p"] < 1:
        sums = torch.sort(scores.double().softmax(-1), descending=True).values.cumsum(-1)
        if float((sums - settings["top_p"]).abs().min()) < 1e-4 * settings["top_p"]:
            return None
        scores = TopPLogitsWarper(settings["top_p"])(None, scores)
    if settings["min_p"]:
        probabilities = scores.double().softmax(-1)
        if (
            float((probabilities / probabilities.max() - settings["min_p"]).abs().min()) < 1e-5
            and settings["min_p"] < 1
        ):
            return None
        scores = MinPLogitsWarper(settings["min_p"])(None, scores)
    return case | {"kept": np.flatnonzero(scores[0].numpy() > -np.inf).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=42)
    parser.add_argument("--filters", type=int, default=120)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    groups = [with_answers(draw_group(arguments.first + i)) for i in range(arguments.groups)]
    cases = [with_kept(draw_filter(arguments.first + i)) for i in range(arguments.filters)]
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    body = [f'"versions": {json.dumps(versions)}']
    for name, found in (("groups", groups), ("filters", [case for case in cases if case is not None])):
        body.append(f'"{name}": [\n' + ",\n".join(map(json.dumps, found)) + "\n]")
    RECORDED.write_text("{" + ",\n".join(body) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
