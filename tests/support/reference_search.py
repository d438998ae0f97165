"""The oracle of decoding: greedy and beam search in plain Python over full passes, without cache or padding; small models."""

import functools
import math
from dataclasses import replace

import jax
import numpy as np

from flaxformer_lite.core.model import DotProduct, Learned, RMSNorm, Rotary, Transformer
from flaxformer_lite.core.model.config import POST_NORM, ModelConfig, SlidingWindow
from flaxformer_lite.core.model.inputs import Inputs, example_inputs
from flaxformer_lite.core.search.search import SearchInputs, SearchSettings, finish
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD

VOCAB = 11
SMALL = ModelConfig(
    vocab_size=VOCAB,
    d_model=13,
    num_heads=3,
    d_ff=17,
    num_encoder_layers=1,
    num_decoder_layers=2,
    attention=DotProduct(d_key=5, d_value=7),
)
OTHER = replace(
    SMALL,
    target_vocab_size=19,
    num_heads=6,
    attention=DotProduct(d_key=5, d_value=7, num_kv_heads=2),
    positions=Learned(max_positions=47, stddev=0.5),
    activation="swiglu",
    norm=RMSNorm(),
    residual=POST_NORM,
    share_source_target=False,
    share_target_output=False,
    dtype="float64",
)
ALONE = replace(SMALL, num_encoder_layers=0)
WINDOW = replace(
    OTHER,
    num_encoder_layers=0,
    target_vocab_size=None,
    sliding_window=SlidingWindow(size=3),
    positions=Rotary(base=37.0),
)
SOURCES = [[5, 7, 9, EOS], [4, 10, 6, EOS], [10, 4, 4, 6, 8, 5, EOS], [8, 6, 5, EOS], [9, 8, 7, 6, 5, 4, EOS]]
BEAMS = {
    "early": DecodeConfig(beam_size=3, num_hypotheses=3, length_penalty="none"),
    "late": DecodeConfig(beam_size=3, num_hypotheses=3, early_stopping=False),
    "never": DecodeConfig(beam_size=3, num_hypotheses=3, early_stopping="never", alpha=0.6),
}
LIKE_THEIRS = DecodeConfig(
    finish_at_limit=True,
    early_stopping=False,
    alpha=0.8,
    no_repeat_ngram=2,
    min_new_tokens=2,
    suppress_ids=(7,),
    eos_ids=(EOS, 9, 4),
)


@functools.lru_cache
def model_of(config, seed=4):
    """Returns a model with random weights, so large that answers to several sources differ in text and length."""
    model, generator = Transformer(config), np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0), example_inputs(config))

    def draw(path, x):
        scale = (0.7 if "embedding" in jax.tree_util.keystr(path) else 4.0) * x.shape[-1] ** -0.5
        return np.float32(scale * generator.normal(size=x.shape))

    return model, jax.tree_util.tree_map_with_path(draw, shapes)


def padded(sources, width, left=False):
    """Returns source tokens and mask, padded on the right or left with a word that would change the answer if it were seen."""
    tokens, mask = np.full((len(sources), width), 4, np.int32), np.zeros((len(sources), width), bool)
    for row, source in enumerate(sources):
        start = width - len(source) if left else 0
        tokens[row, start : start + len(source)], mask[row, start : start + len(source)] = source, True
    return tokens, mask


def search_whole(method, models, variables, batch, settings):
    """Returns the answers to a batch: all of a search as one pure function, in which rows stay until the last one is done."""
    inputs, state = method.start(models, variables, batch, settings)
    return finish(method, models, variables, inputs, state, settings)


@functools.lru_cache
def compiled(models, method):
    """All of a search as one program of the variables of each model, a batch and settings."""
    return jax.jit(functools.partial(search_whole, method, models), static_argnames="settings")


def decode(method, model, params, sources, config, max_lengths, width=7, max_new_tokens=None, more=()):
    """The answers of a search as one program; `more`: pairs of further models and their variables."""
    (models, variables) = zip((model, params), *more, strict=True)
    tokens, mask = padded(sources, width, left=model.config.num_encoder_layers == 0)
    max_lengths = np.broadcast_to(np.int32(max_lengths), len(sources))
    settings = SearchSettings(config, max_new_tokens or int(max(max_lengths)))
    return jax.device_get(
        compiled(models, method)(variables, SearchInputs(tokens, mask, max_lengths), settings=settings)
    )


def answers(decoded):
    """Returns the answers to each source as (tokens, score), and checks the padding after the tokens."""
    rows = []
    for tokens, lengths, scores in zip(*decoded, strict=True):
        assert all((t[n:] == PAD).all() for t, n in zip(tokens, lengths, strict=True))
        rows.append([(tuple(t[:n].tolist()), float(s)) for t, n, s in zip(tokens, lengths, scores, strict=True)])
    return rows


def assert_same(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert [tokens for tokens, _ in one] == [tokens for tokens, _ in other]
        np.testing.assert_allclose([s for _, s in one], [s for _, s in other], rtol=tolerance, atol=tolerance)


PROBABILITIES = [0.05, 0.01, 0.01, 0.3, 0.6] + 6 * [0.005]
"""Probabilities of the next token, for a model whose answers are worked by hand: `4`, the end, `0`; others are rare."""


def constant(params, probabilities=PROBABILITIES):
    """Returns parameters with which the next token has these probabilities, whatever the model reads."""
    params = jax.tree.map(np.zeros_like, params)
    params["params"]["decoder"]["final_norm"]["bias"][0] = 1.0
    params["params"]["embedding"]["embedding"][:, 0] = np.log(probabilities)
    return params


# The oracle: no cache, no padding, one sentence at a time ---------------------------------------------------------------


@functools.lru_cache
def full_pass(model):
    def run(params, source, target):
        return model.apply(params, Inputs(source if model.config.num_encoder_layers else None, target)).logits

    return jax.jit(run)


def log_probs(model, params, source, prefixes, width):
    """Returns log-probabilities after each position of the prefixes, by one full pass; padding after a prefix cannot matter.

    A decoder alone reads what it goes on from before the prefix, in the place of BOS.
    """
    alone = model.config.num_encoder_layers == 0
    before, columns = (source, width + 6) if alone else ([BOS], width)
    target = np.full(
        (max(5, len(prefixes)), columns), PAD, np.int32
    )  # five or more, so that one compilation serves most
    for row, prefix in zip(target, prefixes, strict=False):
        row[: len(before) + len(prefix)] = [*before, *prefix]
    source = None if alone else np.broadcast_to(np.int32(source), (len(target), len(source)))
    logits = np.array(full_pass(model)(params, source, target), np.float64)[: len(prefixes), len(before) - 1 :]
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def reference_score(log_prob, words, config, cut=False):
    length = words if cut and config.finish_at_limit else words + 1
    penalty = {"none": 1, "average": length**config.alpha, "gnmt": ((5 + length) / 6) ** config.alpha}
    return log_prob / penalty[config.length_penalty]


def reference_greedy(model, params, source, max_length, config):
    words, log_prob = (), 0.0
    before = [BOS] if model.config.num_encoder_layers else source
    for length in range(1, max_length + 1):
        row = log_probs(model, params, source, [words], max_length)[0, len(words)]
        row = processed(row, before, words, length == max_length, config)
        log_prob += row.max()
        if row.argmax() in config.eos_ids:
            return [(words, reference_score(log_prob, len(words), config))]
        words += (int(row.argmax()),)
    return [(words, reference_score(log_prob, len(words), config, cut=True))]


def reference_beam(model, params, source, max_length, config):
    k, opened, finished = config.beam_size, [(0.0, ())], []
    before = [BOS] if model.config.num_encoder_layers else source
    for length in range(1, max_length + 1):
        last = length == max_length
        rows = log_probs(model, params, source, [words for _, words in opened], max_length)[:, length - 1]
        candidates = []
        for (s, words), row in zip(opened, rows, strict=False):
            row = processed(row, before, words, last, config)
            candidates += [(s + row[t], (*words, t)) for t in range(len(row)) if row[t] > -math.inf]
        candidates = sorted(candidates, reverse=True)[: (1 + len(config.eos_ids)) * k]
        still_open = [(s, words) for s, words in candidates if words[-1] not in config.eos_ids][:k]
        for s, words in candidates[:k]:
            if words[-1] in config.eos_ids:
                finished.append((words[:-1], reference_score(s, length - 1, config)))
            elif last and config.finish_at_limit:
                finished.append((words, reference_score(s, length, config, cut=True)))
        finished = sorted(finished, key=lambda answer: -answer[1])[:k]
        best = candidates if not config.finish_at_limit else still_open
        late = config.early_stopping == "never" and config.alpha > 0
        words, cut = (max_length, True) if late else (length - 1, False)
        bound = reference_score(best[0][0], words, config, cut) if best else -math.inf
        if len(finished) == k and (config.early_stopping is True or finished[-1][1] >= bound):
            return finished
        opened = still_open
    if not config.finish_at_limit:
        finished += [(words, reference_score(s, len(words), config)) for s, words in opened]
    return sorted(finished, key=lambda answer: -answer[1])[:k]


def processed(row, before, words, last, config):
    """Returns the log-probabilities under the rules of the settings."""
    return np.array(reference_process_logits(row, [*before, *words], len(words), last, config))


def reference_process_logits(row, read, step, last, config):
    """Returns one row of scores after the tokens `read`, in plain Python."""
    row = [float(x) for x in row]
    for i in set(read):
        row[i] = row[i] / config.repetition_penalty if row[i] > 0 else row[i] * config.repetition_penalty
    n = config.no_repeat_ngram
    grams = [tuple(read[i : i + n]) for i in range(len(read) - n + 1)] if n else []
    tail = tuple(read[len(read) - n + 1 :]) if n > 1 else ()
    forbidden = {gram[-1] for gram in grams if gram[:-1] == tail} | set(config.suppress_ids)
    if step < config.min_new_tokens:
        forbidden |= set(config.eos_ids)
    row = [-math.inf if i in forbidden else x for i, x in enumerate(row)]
    forced = config.forced_bos_id if step == 0 else None
    forced = config.forced_eos_id if last and config.forced_eos_id is not None else forced
    row = row if forced is None else [0.0 if i == forced else -math.inf for i in range(len(row))]
    total = math.log(sum(map(math.exp, row))) if config.renormalize else 0.0
    return [x - total for x in row]
