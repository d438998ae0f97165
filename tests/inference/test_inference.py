"""Oracles: a slow search in plain Python over full passes of the model, all sequences there are, hand-worked values, and laws."""

import functools
import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.inference.beam import beam_search
from flaxformer_lite.inference.config import DecodeConfig, Sampling
from flaxformer_lite.inference.decoder import Decoder, Hypothesis, plan_batches
from flaxformer_lite.inference.greedy import greedy
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import ModelConfig, SlidingWindow
from flaxformer_lite.model.inputs import Inputs, example_inputs
from flaxformer_lite.model.norms import RMSNorm
from flaxformer_lite.model.positions import Learned, Rotary
from flaxformer_lite.model.residual import POST_NORM
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.parallel.mesh import make_mesh
from flaxformer_lite.parallel.sharding import replicated
from flaxformer_lite.text.special_ids import BOS, EOS, PAD
from tests.inference.test_sampling import reference_adjusted

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


@functools.lru_cache
def model_of(config, seed=4):
    """A model with random weights, so large that its answers to several sources differ, and end here and there."""
    model, generator = Transformer(config), np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0), example_inputs(config))

    def draw(path, x):
        scale = (0.7 if "embedding" in jax.tree_util.keystr(path) else 4.0) * x.shape[-1] ** -0.5
        return np.float32(scale * generator.normal(size=x.shape))

    return model, jax.tree_util.tree_map_with_path(draw, shapes)


def padded(sources, width, left=False):
    """Source tokens and mask, filled up with a word, which would change the answer were it seen: on the right, or on the left."""
    tokens, mask = np.full((len(sources), width), 4, np.int32), np.zeros((len(sources), width), bool)
    for row, source in enumerate(sources):
        place = slice(width - len(source), width) if left else slice(0, len(source))
        tokens[row, place], mask[row, place] = source, True
    return tokens, mask


@functools.lru_cache
def compiled(model, search, config):
    return jax.jit(functools.partial(search, model, config=config), static_argnames="room")


def decode(search, model, params, sources, config, max_lengths, width=7, room=None):
    tokens, mask = padded(sources, width, left=model.config.num_encoder_layers == 0)
    max_lengths = np.broadcast_to(np.int32(max_lengths), len(sources))
    return jax.device_get(
        compiled(model, search, config)(
            params, tokens, mask, room=room or int(max(max_lengths)), max_lengths=max_lengths
        )
    )


def answers(decoded):
    """The answers of each sentence as (tokens, score); checks what stands after the tokens."""
    rows = []
    for tokens, lengths, scores in zip(*decoded, strict=True):
        assert all((t[n:] == PAD).all() for t, n in zip(tokens, lengths, strict=True))
        rows.append([(tuple(t[:n].tolist()), float(s)) for t, n, s in zip(tokens, lengths, scores, strict=True)])
    return rows


def assert_same(found, expected, tolerance=1e-5):
    for one, other in zip(found, expected, strict=True):
        assert [tokens for tokens, _ in one] == [tokens for tokens, _ in other]
        np.testing.assert_allclose([s for _, s in one], [s for _, s in other], rtol=0, atol=tolerance)


# The oracle: no cache, no padding, one sentence at a time ---------------------------------------------------------------


@functools.lru_cache
def full_pass(model):
    def run(params, source, target):
        return model.apply(params, Inputs(source if model.config.num_encoder_layers else None, target)).logits

    return jax.jit(run)


def log_probs(model, params, source, prefixes, width):
    """Log-probabilities after each position of the prefixes, by one full pass. What follows a prefix cannot matter.

    A decoder alone reads what it goes on from before the prefix, in the place of BOS.
    """
    alone = model.config.num_encoder_layers == 0
    before, room = (source, width + 6) if alone else ([BOS], width)
    target = np.full((max(5, len(prefixes)), room), PAD, np.int32)  # five or more, so that one compilation serves most
    for row, prefix in zip(target, prefixes, strict=False):
        row[: len(before) + len(prefix)] = [*before, *prefix]
    source = None if alone else np.broadcast_to(np.int32(source), (len(target), len(source)))
    logits = np.array(full_pass(model)(params, source, target), np.float64)[: len(prefixes), len(before) - 1 :]
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def reference_score(log_prob, words, config, cut=False):
    length = words if cut and config.at_limit == "end" else words + 1
    penalty = {"none": 1, "average": length**config.alpha, "gnmt": ((5 + length) / 6) ** config.alpha}
    return log_prob / penalty[config.length_penalty]


def reference_greedy(model, params, source, max_length, config):
    words, log_prob = (), 0.0
    before = [BOS] if model.config.num_encoder_layers else source
    for length in range(1, max_length + 1):
        row = log_probs(model, params, source, [words], max_length)[0, len(words)]
        row = demanded(row, before, words, length == max_length, config)
        log_prob += row.max()
        if row.argmax() in config.end_ids:
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
            row = demanded(row, before, words, last, config)
            candidates += [(s + row[t], (*words, t)) for t in range(len(row)) if row[t] > -math.inf]
        candidates = sorted(candidates, reverse=True)[: (1 + len(config.end_ids)) * k]
        goes_on = [(s, words) for s, words in candidates if words[-1] not in config.end_ids][:k]
        for s, words in candidates[:k]:
            if words[-1] in config.end_ids:
                finished.append((words[:-1], reference_score(s, length - 1, config)))
            elif last and config.at_limit == "end":
                finished.append((words, reference_score(s, length, config, cut=True)))
        finished = sorted(finished, key=lambda answer: -answer[1])[:k]
        best = candidates if config.at_limit == "cut" else goes_on
        late = config.early_stopping == "never" and config.alpha > 0
        words, cut = (max_length, True) if late else (length - 1, False)
        bound = reference_score(best[0][0], words, config, cut) if best else -math.inf
        if len(finished) == k and (config.early_stopping is True or finished[-1][1] >= bound):
            return finished
        opened = goes_on
    if config.at_limit == "cut":
        finished += [(words, reference_score(s, len(words), config)) for s, words in opened]
    return sorted(finished, key=lambda answer: -answer[1])[:k]


def demanded(row, before, words, last, config):
    """Log-probabilities as the settings change them."""
    return np.array(reference_adjusted(row, [*before, *words], len(words), last, config))


# Searches --------------------------------------------------------------------------------------------------------------

BEAMS = {
    "early": DecodeConfig(beam_size=3, num_hypotheses=3, length_penalty="none"),
    "late": DecodeConfig(beam_size=3, num_hypotheses=3, early_stopping=False),
    "never": DecodeConfig(beam_size=3, num_hypotheses=3, early_stopping="never", alpha=0.6),
}


@pytest.mark.parametrize("settings", BEAMS.values(), ids=BEAMS)
def test_beam_search_equals_uncached_reference(settings):
    """Oracle: the algorithm in plain Python over full passes; tokens equal, scores to 1e-5."""
    model, params = model_of(SMALL)
    found = answers(decode(beam_search, model, params, SOURCES, settings, 13))
    assert_same(found, [reference_beam(model, params, source, 13, settings) for source in SOURCES])


LONG = {
    "greedy": (greedy, reference_greedy, DecodeConfig(length_penalty="gnmt", alpha=0.6)),
    "beam": (
        beam_search,
        reference_beam,
        DecodeConfig(beam_size=5, num_hypotheses=5, length_penalty="gnmt", alpha=0.6),
    ),
}


@pytest.mark.parametrize(("search", "reference", "settings"), LONG.values(), ids=LONG)
def test_long_answers_equal_uncached_reference(search, reference, settings):
    """Oracle: the same in float64, to 1e-10, for another model, whose answers make the cache grow on the way."""
    with jax.enable_x64(True):
        model, params = model_of(OTHER, seed=0)
        sources = SOURCES[2::2]
        decoded = decode(search, model, params, sources, settings, 37)
        assert decoded.scores.dtype == np.float64 and decoded.tokens.dtype == decoded.lengths.dtype == np.int32
        expected = [reference(model, params, source, 37, settings) for source in sources]
        assert_same(answers(decoded), expected, tolerance=1e-10)
        assert decoded.lengths.min() < 16 < decoded.lengths.max(), "16 is all that the first stage of the cache holds"


@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["source", "prompt"])
def test_wide_beam_equals_exhaustive_search(config):
    """Oracle: all 85 answers over five ids of at most three tokens, scored by a full pass and the printed formula."""
    model, params = model_of(replace(config, vocab_size=5))
    source, longest = [4, 1, EOS], 3
    settings = DecodeConfig(beam_size=89, num_hypotheses=89, alpha=0.7)
    cut = list(itertools.product([w for w in range(5) if w != EOS], repeat=longest))
    rows = log_probs(model, params, source, [answer[:-1] for answer in cut], longest)
    expected = {}
    for answer, row in zip(cut, rows, strict=True):
        sums = np.cumsum([0, *(row[i, token] for i, token in enumerate(answer))])
        expected[answer] = reference_score(sums[-1], longest, settings)
        for n in range(longest):
            expected[answer[:n]] = reference_score(sums[n] + row[n, EOS], n, settings)
    found = answers(decode(beam_search, model, params, [source], settings, longest, width=3))[0]
    found = [(tokens, score) for tokens, score in found if score > -math.inf]
    assert len(found) == len(expected) == 85
    assert_same([found], [sorted(expected.items(), key=lambda answer: -answer[1])])


LIKE_THEIRS = DecodeConfig(
    at_limit="end",
    early_stopping=False,
    alpha=0.8,
    no_repeat_ngram=2,
    min_new_tokens=2,
    suppress_ids=(7,),
    more_eos_ids=(9, 4),
)
DEMANDING = {
    "source": (SMALL, replace(LIKE_THEIRS, forced_bos_id=8, forced_eos_id=EOS)),
    "prompt": (WINDOW, LIKE_THEIRS),
    "prompt_never": (WINDOW, replace(LIKE_THEIRS, early_stopping="never", no_repeat_ngram=3)),
    "prompt_early": (WINDOW, replace(LIKE_THEIRS, early_stopping=True, alpha=-0.5, no_repeat_ngram=3)),
}


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize(("config", "settings"), DEMANDING.values(), ids=DEMANDING)
def test_demands_on_answers_equal_uncached_reference(config, settings, beam_size):
    """Oracle: the same search in plain Python over full passes and lists of tokens, to 1e-5; prompts go far past the window."""
    with jax.enable_x64(config is WINDOW):
        model, params = model_of(config, seed=4 if config is SMALL else 1)
        settings = replace(settings, beam_size=beam_size, num_hypotheses=beam_size)
        search, reference = (greedy, reference_greedy) if beam_size == 1 else (beam_search, reference_beam)
        found = answers(decode(search, model, params, SOURCES, settings, 9))
        assert_same(found, [reference(model, params, source, 9, settings) for source in SOURCES])
        assert len({len(row[0][0]) for row in found}) > 1


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_without_an_end_answers_are_as_long_as_they_may_be(search):
    """Oracle: the lengths, for a model that says the id of the end more often than any other."""
    model, params = model_of(SMALL)
    settings = replace(LIKE_THEIRS, eos_id=None, more_eos_ids=(), beam_size=1 if search is greedy else 3)
    likely_end = [0.9 if i == EOS else 0.01 for i in range(VOCAB)]
    found = decode(search, model, constant(params, likely_end), SOURCES, replace(settings, no_repeat_ngram=0), 5)
    assert found.lengths.tolist() == 5 * [[5]] and (np.asarray(found.tokens)[:, 0, :5] == EOS).all()


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_left_padding_changes_nothing(search):
    """Law: prompts are answered alike in rows of any width, also where the cache keeps a window only; in float64, to 1e-10."""
    settings = DecodeConfig() if search is greedy else BEAMS["late"]
    with jax.enable_x64(True):
        model, params = model_of(WINDOW, seed=1)
        found = [answers(decode(search, model, params, SOURCES, settings, 13, width=width)) for width in (7, 12)]
        assert_same(*found, tolerance=1e-10)


def test_cache_is_as_wide_as_the_window():
    """Oracle: the shapes; where only some layers have a window, or none, there is room for everything."""
    for config, room in (
        (WINDOW, 3),
        (ALONE, 50),
        (replace(ALONE, sliding_window=SlidingWindow(size=3, layers=(1,))), 50),
    ):
        with jax.enable_x64(config is WINDOW):
            model, params = model_of(config)
            cache = model.apply(params, None, 50, 2, method="start_cache")
        assert {x.shape[:3] for x in cache.own} == {(2, 2, room)}


def test_beam_of_one_is_greedy():
    """Law: one beam that stops at its first end is greedy search, scores included."""
    model, params = model_of(SMALL)
    generator = np.random.default_rng(1)
    lengths = set()
    for start in range(0, 55, 5):  # five at a time, so that one compilation serves the tests below too
        sources = [[*generator.integers(4, VOCAB, 1 + i % 6), EOS] for i in range(start, start + 5)]
        found = [decode(search, model, params, sources, DecodeConfig(), 13) for search in (greedy, beam_search)]
        np.testing.assert_array_equal(found[0].tokens, found[1].tokens)
        np.testing.assert_array_equal(found[0].lengths, found[1].lengths)
        np.testing.assert_allclose(found[0].scores, found[1].scores, rtol=0, atol=1e-5)
        lengths |= set(found[0].lengths[:, 0].tolist())
    assert len(lengths) > 2, "all answers are of one length: nothing was compared"


PROBABILITIES = [0.05, 0.01, 0.01, 0.3, 0.6] + 6 * [0.005]
"""Of the next token, for a model whose answers are worked by hand: `4`, then the end, then `0`, the others hardly ever."""


def constant(params, probabilities=PROBABILITIES):
    """Parameters like these, with which the model gives the next token these probabilities, whatever it reads."""
    params = jax.tree.map(np.zeros_like, params)
    params["params"]["decoder"]["final_norm"]["bias"][0] = 1.0
    params["params"]["embedding"]["embedding"][:, 0] = np.log(probabilities)
    return params


def test_answers_by_hand():
    """Oracle: worked by hand for a model that at every step says the end with 0.3, `4` with 0.6, `0` with 0.05."""
    model, params = model_of(SMALL)
    end, word, zero = math.log(0.3), math.log(0.6), math.log(0.05)
    # Step 1: the end comes second, so "" is finished; `4`, `0` and another stay open.
    # Step 2: `4` and the end come second, after `4 4`, so "4" is finished. Step 3: so is "4 4", and three are enough.
    found = decode(beam_search, model, constant(params), SOURCES, BEAMS["early"], 13)
    assert_same(answers(found), 5 * [[((), end), ((4,), word + end), ((4, 4), 2 * word + end)]])
    # Where step 1 is the last, the open `4` and `0` are taken as they are; with the end that they lack they count two.
    found = decode(beam_search, model, constant(params), SOURCES, BEAMS["late"], 1, room=13)
    assert_same(answers(found), 5 * [[((4,), word / 2), ((), end), ((0,), zero / 2)]])


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_neighbours_change_nothing(search):
    """Law: an answer is the same beside other sentences with other maximum lengths as beside empty rows."""
    model, params = model_of(SMALL)
    settings = DecodeConfig() if search is greedy else BEAMS["late"]
    limits = np.array([11, 2, 5, 1, 8], np.int32)
    together = decode(search, model, params, SOURCES, settings, limits, room=13)
    assert (together.lengths <= limits[:, None]).all()
    for i, source in enumerate(SOURCES):
        sources = [[EOS]] * 5
        sources[-i] = source
        alone = decode(
            search, model, params, sources, settings, np.where(np.arange(5) == -i % 5, limits[i], 0), room=13
        )
        assert_same([answers(alone)[-i]], [answers(together)[i]])
        assert all(score in (0, -math.inf) for score in np.delete(alone.scores, -i, 0).flat), "an empty row was active"


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_parameters_on_several_devices_answer_alike(search):
    """Law: where every device has the parameters, as in a run that is loaded with several, the answers are those of one."""
    model, params = model_of(SMALL)
    settings = DecodeConfig() if search is greedy else BEAMS["late"]
    everywhere = jax.device_put(params, replicated(make_mesh()))
    expected, found = (decode(search, model, p, SOURCES, settings, 13) for p in (params, everywhere))
    assert_same(answers(found), answers(expected))


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_weights_of_nan_still_answer(search):
    """Law: every sentence has an answer, also from weights that training has spoilt."""
    model, params = model_of(SMALL)
    settings = DecodeConfig() if search is greedy else BEAMS["late"]
    params = jax.tree.map(lambda p: p * np.nan, params)
    decoded = decode(search, model, params, SOURCES, settings, 13)
    assert (decoded.scores[:, 0] != -math.inf).all()


# The host side ---------------------------------------------------------------------------------------------------------


def test_generate_answers_in_order_and_compiles_once_a_shape():
    """Law: the answers to many are the answers to each alone, in order; a jit's cache has one entry for each shape."""
    model, params = model_of(SMALL)
    settings = DecodeConfig(beam_size=2, num_hypotheses=2, batch_tokens=64, max_length_ratio=0.5, max_length_extra=3)
    generator = np.random.default_rng(2)
    sources = [[*generator.integers(4, VOCAB, n).tolist(), EOS] for n in (9, 2, 12, 5, 14, 7, 10, 3, 15)]
    decoder, told = Decoder(model, settings), []
    together = decoder.generate(params, sources, progress=lambda done, total: told.append((done, total)))
    shapes = {(b.rows, b.source_length) for b in plan_batches([len(s) for s in sources], settings.batch_tokens)}
    assert shapes == {(4, 16), (1, 8)} and told == [(4, 9), (8, 9), (9, 9)]
    assert decoder.search._cache_size() == len(shapes)
    for source, hypotheses in zip(sources, together, strict=True):
        if len(source) <= 8:
            assert_same([decoder.generate(params, [source])[0]], [hypotheses])
        assert all(isinstance(h, Hypothesis) and EOS not in h.tokens for h in hypotheses)
        assert all(len(h.tokens) <= len(source) // 2 + 3 for h in hypotheses)
        first, second = hypotheses
        assert first.tokens != second.tokens and first.score >= second.score
    never_ending = constant(params, [0.1, 0.1, 0.1, 1e-9] + 7 * [0.1])
    for source, hypotheses in zip(sources, decoder.generate(never_ending, sources), strict=True):
        assert all(len(h.tokens) == settings.max_length(len(source)) for h in hypotheses)
    assert decoder.search._cache_size() == len(shapes)
    assert decoder.generate(params, []) == []


def test_prompts_samples_and_streams():
    """Law: what a prompt is answered depends on seed, number and sample alone, not on the batch; a stream is the first answer."""
    model, params = model_of(ALONE)
    settings = DecodeConfig(sampling=Sampling(temperature=1.5), num_hypotheses=3, batch_tokens=64, max_new_tokens=7)
    generator = np.random.default_rng(5)
    prompts = [generator.integers(4, VOCAB, n).tolist() for n in (3, 8, 1, 2, 5)]
    decoder = Decoder(model, settings)
    together = decoder.generate(params, prompts, seed=3)
    assert together == decoder.generate(params, prompts, seed=3) and [len(answer) for answer in together] == 5 * [3]
    for number, prompt in enumerate(prompts):
        assert_same(decoder.generate(params, [prompt], seed=3, first=number), together[number : number + 1])
    drawn = [tuple(h.tokens) for answer in together for h in answer]
    assert len(set(drawn)) > 8 and max(map(len, drawn)) == 7
    assert together != decoder.generate(params, prompts, seed=4)
    for seed in (3, 4):
        parts = list(decoder.stream(params, prompts[1], seed, at_once=3))
        assert [*itertools.chain(*parts)] == decoder.generate(params, [prompts[1]], seed=seed)[0][0].tokens
        assert all(len(part) <= 3 for part in parts)
    best = [Decoder(model, replace(settings, sampling=s, num_hypotheses=1)) for s in (Sampling(temperature=0), None)]
    zero, searched = (decoder.generate(params, prompts) for decoder in best)
    expected = [reference_greedy(model, params, prompt, 7, best[1].config) for prompt in prompts]
    assert_same([[(tuple(h.tokens), h.score) for h in answer] for answer in searched], expected)
    assert_same(zero, searched)


def test_answers_end_with_the_positions():
    """Oracle: worked by hand: the last of the new tokens is not read, so it needs no position. And the messages."""
    model, params = model_of(replace(ALONE, positions=Learned(max_positions=9)))
    never_ending = constant(params, [0.1, 0.1, 0.1, 1e-9] + 7 * [0.1])
    decoder = Decoder(model, DecodeConfig(max_new_tokens=6))
    lengths = [len(answer[0].tokens) for answer in decoder.generate(never_ending, [[4] * n for n in (2, 6, 9)])]
    assert lengths == [6, 4, 1]
    wrong = {r"prompt 1 has 10 tokens.*max_positions is 9": [[4], [4] * 10], "prompt 0 has no tokens": [[]]}
    for message, prompts in wrong.items():
        with pytest.raises(ValueError, match=message):
            decoder.generate(params, prompts)
    with pytest.raises(ValueError, match=r"decode.suppress_ids has 11, but the model writes the ids 0 to 10 only"):
        Decoder(model, DecodeConfig(suppress_ids=(4, 11)))
    with pytest.raises(ValueError, match=r"decode.beam_size is 2: only a beam of 1"):
        next(Decoder(model, DecodeConfig(beam_size=2)).stream(params, [4]))


def test_plan_batches_by_hand():
    """Oracle: worked by hand: longest first, lengths to a power of two from 8, rows to 1, 8, … or what 64 tokens allow."""
    assert plan_batches([3, 20, 9, 16], 64) == [([1, 3], 2, 32), ([2, 0], 4, 16)]
    assert plan_batches([8] * 11, 64) == [(list(range(8)), 8, 8), ([8, 9, 10], 8, 8)]
    assert plan_batches([100, 5], 64) == [([0], 1, 128), ([1], 1, 8)]
    assert plan_batches([], 64) == []


def test_plan_batches_has_few_shapes():
    """Law: every sentence once, no batch over the limit, and few shapes for a long list of any lengths."""
    lengths = np.random.default_rng(3).integers(0, 129, 5003).tolist()
    plan = plan_batches(lengths, 2048)
    assert sorted(i for batch in plan for i in batch.sentences) == list(range(5003))
    for batch in plan:
        assert len(batch.sentences) <= batch.rows and batch.rows * batch.source_length <= 2048
        assert max(lengths[i] for i in batch.sentences) <= batch.source_length
    assert len({(batch.rows, batch.source_length) for batch in plan}) <= 6


def test_max_length():
    """Oracle: worked by hand."""
    settings = DecodeConfig(max_length_ratio=1.5, max_length_extra=2)
    assert [settings.max_length(n) for n in (0, 1, 2, 7)] == [2, 3, 5, 12]
    assert DecodeConfig(max_length_ratio=0.25, max_length_extra=0).max_length(3) == 1
    assert DecodeConfig(max_new_tokens=5).max_length(3) == DecodeConfig(max_new_tokens=5).max_length(99) == 5


@pytest.mark.parametrize("beam_size", [1, 2])
def test_learned_positions_end_and_bfloat16_sums_are_exact(beam_size):
    """Law: no answer goes, and no source may go, past the last learned position. Oracle of the score: the logits,
    rounded to bfloat16, then in float64: neither log-probabilities nor their sum are rounded again.
    """
    model, params = model_of(replace(SMALL, positions=Learned(max_positions=5), dtype="bfloat16"))
    settings = DecodeConfig(beam_size=beam_size, early_stopping=beam_size == 1, max_length_ratio=9.0)
    decoder = Decoder(model, settings)
    logits = np.float64(np.log(PROBABILITIES).astype(jnp.bfloat16))
    word = logits[4] - np.log(np.exp(logits).sum())
    (answer,) = decoder.generate(constant(params), [[4, 5, 6, 7, EOS]])[0]
    assert_same([[answer]], [[([4] * 5, 5 / 6 * word)]])
    with pytest.raises(ValueError, match=r"source 1 has 6 tokens, but model.positions.max_positions is 5"):
        decoder.generate(params, [[4, EOS], [4, 5, 6, 7, 8, EOS]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "decode.beam_size is 0: it must be at least 1"),
        ({"alpha": math.nan}, "decode.alpha is nan: it must be finite"),
        ({"alpha": 0.6, "length_penalty": "none"}, "decode.alpha is 0.6, but decode.length_penalty 'none'"),
        ({"num_hypotheses": 2}, "decode.num_hypotheses is 2: give 1 to decode.beam_size, which is 1"),
        ({"num_hypotheses": 0}, "decode.num_hypotheses is 0"),
        ({"max_length_ratio": math.inf}, "decode.max_length_ratio is inf"),
        ({"max_length_extra": -1}, "decode.max_length_extra is -1"),
        (
            {"max_length_ratio": 0.0, "max_length_extra": 0},
            "decode.max_length_ratio and decode.max_length_extra are both 0",
        ),
        ({"batch_tokens": 0}, "decode.batch_tokens is 0"),
        ({"max_new_tokens": 0}, "decode.max_new_tokens is 0: it must be at least 1, or None"),
        ({"suppress_ids": (3, -1)}, "decode.suppress_ids is (3, -1): it must be values that are each at least 0"),
        ({"repetition_penalty": 0.0}, "decode.repetition_penalty is 0.0: it must be above 0"),
        ({"beam_size": 2, "sampling": Sampling()}, "decode.beam_size is 2, but decode.sampling draws tokens"),
    ],
)
def test_wrong_settings(settings, message):
    """Oracle: the messages, one line each."""
    with pytest.raises(ValueError) as error:
        DecodeConfig(**settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
