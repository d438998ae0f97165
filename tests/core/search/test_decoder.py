"""Laws of many answers: in order, a shape compiled once, samples and streams that depend on seed and index alone."""

import functools
import itertools
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.placement.batches import plan_batches
from flaxformer_lite.core.search.answers import Hypothesis
from flaxformer_lite.core.search.decoder import Decoder, Row
from flaxformer_lite.core.search.request import Request, requests_in_order
from flaxformer_lite.core.search.rows import Weights
from flaxformer_lite.core.search.search import Decoded
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling
from flaxformer_lite.core.text.special_ids import EOS
from tests.support.experiments import num_programs
from tests.support.quick import quick
from tests.support.reference_search import (
    ALONE,
    PROBABILITIES,
    SMALL,
    VOCAB,
    assert_same,
    constant,
    model_of,
    reference_greedy,
)


@pytest.mark.usefixtures("own_programs")
@pytest.mark.slow
def test_generate_answers_in_order_and_compiles_once_a_shape():
    """Law: the answers to many are the answers to each alone, in order; a jit's cache has one entry for each shape."""
    model, params = model_of(SMALL)
    settings = DecodeConfig(beam_size=2, num_hypotheses=2, batch_tokens=64, max_length_ratio=0.5, max_length_extra=3)
    generator = np.random.default_rng(2)
    sources = [[*generator.integers(4, VOCAB, n).tolist(), EOS] for n in (9, 2, 12, 5, 14, 7, 10, 3, 15)]
    decoder, reported = Decoder(model, settings), []
    together = decoder.generate(params, sources, progress=lambda *told: reported.append(told[1:]))
    shapes = {(b.rows, b.length) for b in plan_batches([len(s) for s in sources], settings.batch_tokens)}
    assert shapes == {(4, 16), (1, 8)} and reported == [(4, 9), (8, 9), (9, 9)]
    assert num_programs(decoder.search.start) == len(shapes)
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
    assert num_programs(decoder.search.start) == len(shapes)
    assert decoder.generate(params, []) == []


@pytest.mark.usefixtures("own_programs")
@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 3])
def test_rows_have_starts_and_first_tokens_of_their_own(beam_size: int) -> None:
    """Law: a row is answered as by its settings alone, and one program answers all."""
    model, params = model_of(SMALL)
    settings = [
        DecodeConfig(beam_size=beam_size, max_new_tokens=5, bos_id=start, forced_bos_id=first)
        for start, first in ((2, 5), (4, 6), (2, 6), (7, 5))
    ]
    sources = [[4, 5, EOS], [4, 5, EOS], [9, EOS], [4, 5, EOS]]
    decoder = Decoder(model, settings[0])
    together = decoder.generate(params, list(map(Request, sources, settings)))
    assert num_programs(decoder.search.start) == 1
    assert [answers[0].tokens[0] for answers in together] == [5, 6, 6, 5]
    for source, config, answers in zip(sources, settings, together, strict=True):
        assert_same([Decoder(model, config).generate(params, [source])[0]], [answers])
        assert_same([decoder.under(config).generate(params, [source])[0]], [answers])


def test_ids_of_languages_that_were_added_have_no_part_in_a_softmax():
    """Oracle: probabilities by hand. Three ids from 8 on have 0.82 together; of the first 8, one has 0.04, the others 0.02."""
    model, params = model_of(SMALL)
    likely = constant(params, [0.02] * 5 + [0.04] + [0.02] * 2 + [0.82 / 3] * 3)
    settings = DecodeConfig(beam_size=1, max_new_tokens=2, length_penalty="none", num_ids=8, finish_at_limit=True)
    (answer,) = Decoder(model, settings).generate(likely, [[4, 5, EOS]])[0]
    assert answer.tokens == [5, 5]
    assert answer.score == pytest.approx(2 * np.log(0.04 / 0.18), rel=1e-5)


def test_long_answers_of_many_beams_leave_room_for_few_rows():
    """Oracle: worked by hand: 2,048 tokens of texts allow 65,536 of answers, which are 4 rows of 16 beams of 1,024 tokens."""
    model, _ = model_of(ALONE)
    wide = Decoder(model, DecodeConfig(beam_size=16, max_new_tokens=1024))
    assert [(batch.rows, batch.length) for batch in wide.batches([8] * 9)] == [(4, 8), (4, 8), (1, 8)]
    sampled = Decoder(model, DecodeConfig(sampling=Sampling(), max_new_tokens=1024))
    assert sampled.batches([8] * 64) == [(list(range(64)), 64, 8)]
    short = Decoder(model_of(replace(ALONE, positions=Learned(max_positions=9)))[0], wide.config)
    assert [batch.rows for batch in short.batches([8] * 99)] == [128]
    for beam_size, length in itertools.product((1, 4, 5, 8), (8, 16, 64)):
        usual, lengths = Decoder(model_of(SMALL)[0], DecodeConfig(beam_size=beam_size)), [length] * 999
        assert usual.batches(lengths) == plan_batches(lengths, usual.config.batch_tokens)


@pytest.mark.slow
def test_rows_of_smaller_batches_have_the_same_answers():
    """Law: a batch that long answers split has the answers of one that is not."""
    model, params = model_of(SMALL)
    settings = DecodeConfig(beam_size=2, num_hypotheses=2, max_new_tokens=7, batch_tokens=16)
    generator = np.random.default_rng(4)
    sources = [[*generator.integers(4, VOCAB, n).tolist(), EOS] for n in (3, 6, 2, 5)]
    together = Decoder(model, settings).generate(params, sources)
    split = Decoder(model, replace(settings, max_new_tokens=150))
    assert [len(batch.members) for batch in split.batches([len(source) for source in sources])] == [1] * 4
    assert_same(split.generate(params, [Request(source, limit=7) for source in sources]), together)


@pytest.mark.slow
def test_a_source_without_tokens_has_an_empty_answer_and_keeps_its_index():
    """Law: what is sampled for the others is what a source in its place would leave them."""
    model, params = model_of(SMALL)
    config = DecodeConfig(sampling=Sampling(temperature=1.5), num_hypotheses=2, max_new_tokens=4, pad_id=0)
    decoder, sources = Decoder(model, config), [[5, 7, EOS], [6, EOS], [9, EOS], [8, EOS]]
    full = decoder.generate(params, sources)
    found = decoder.generate(params, [sources[0], [], [0, 0], sources[3]])
    assert found[1] == found[2] == [Hypothesis([], 0.0)]
    assert_same([found[0], found[3]], [full[0], full[3]])
    assert decoder.generate(params, [[], [0]]) == 2 * [[Hypothesis([], 0.0)]]


def test_numbers_of_sampling_compile_nothing_and_belong_to_rows():
    """Law: temperature, top_p, min_p and the number of samples are inputs of one program, in which each row has its own."""

    @functools.partial(jax.jit, static_argnames="settings")
    @chex.assert_max_traces(n=1)
    def compiled(inputs, settings):
        rows = inputs.sampling
        scores = rows.temperature + 10 * rows.top_p + 100 * jnp.exp(rows.log_min_p)
        ones = jnp.ones((len(scores), 1), jnp.int32)
        return Decoded(ones[..., None], ones, scores[:, None])

    class OneStep:
        def __call__(self, weights, inputs, settings, over):
            yield compiled(inputs, settings)

    first = DecodeConfig(sampling=Sampling(temperature=0.5, top_p=0.3, min_p=0.02), max_new_tokens=3)
    second = replace(first, sampling=Sampling(temperature=0.75, top_p=0.5), num_hypotheses=2)
    decoder = Decoder(model_of(ALONE)[0], first)
    decoder.search = OneStep()
    expected = [[pytest.approx(5.5)], [pytest.approx(5.75)] * 2]
    together = decoder.generate(Weights((), ()), [Request([4]), Request([5, 6], second), Request([7], first)])
    assert [[h.score for h in answers] for answers in together] == [*expected, expected[0]]
    for config, scores in zip((first, second), expected, strict=True):
        (alone,) = decoder.under(config).generate(Weights((), ()), [[4, 5]] * 3)[:1]
        assert [h.score for h in alone] == scores
    with pytest.raises(AssertionError, match="traced > 1 times"):
        decoder.under(replace(first, sampling=Sampling(top_k=3))).generate(Weights((), ()), [[4]])


@pytest.mark.slow
def test_prompts_samples_and_streams():
    """Law: an answer depends on seed, index and sample alone, not on the batch; a stream is the first answer."""
    model, params = model_of(ALONE)
    settings = DecodeConfig(sampling=Sampling(temperature=1.5), num_hypotheses=3, batch_tokens=64, max_new_tokens=7)
    generator = np.random.default_rng(5)
    prompts = [generator.integers(4, VOCAB, n).tolist() for n in (3, 8, 1, 2, 5)]
    decoder = Decoder(model, settings)
    asked = requests_in_order(prompts, seed=3)
    together = decoder.generate(params, asked)
    assert together == decoder.generate(params, [Request(prompt, seed=3) for prompt in prompts])
    assert [len(answer) for answer in together] == 5 * [3]
    for number, request in enumerate(asked):
        assert_same(decoder.generate(params, [request]), together[number : number + 1])
    compiled, cooler = (
        num_programs(decoder.search.advance),
        replace(settings, sampling=Sampling(temperature=0.5, top_p=0.8)),
    )
    expected = Decoder(model, cooler).generate(params, asked)
    assert decoder.under(cooler).generate(params, asked) == expected != together
    mixed = decoder.generate(params, [replace(one, settings=(cooler, settings)[i % 2]) for i, one in enumerate(asked)])
    assert_same(mixed, [(expected, together)[i % 2][i] for i in range(5)])
    assert num_programs(decoder.search.advance) == compiled
    drawn = [tuple(h.tokens) for answer in together for h in answer]
    assert len(set(drawn)) > 8 and max(map(len, drawn)) == 7
    assert together != decoder.generate(params, requests_in_order(prompts, seed=4))
    for seed in (3, 4):
        parts = list(decoder.stream(params, Request(prompts[1], seed=seed)))
        assert [*itertools.chain(*parts)] == decoder.generate(params, [Request(prompts[1], seed=seed)])[0][0].tokens
        assert all(len(part) <= 4 for part in parts)
    best = [Decoder(model, replace(settings, sampling=s, num_hypotheses=1)) for s in (Sampling(temperature=0), None)]
    zero, searched = (decoder.generate(params, prompts) for decoder in best)
    expected = [reference_greedy(model, params, prompt, 7, best[1].config) for prompt in prompts]
    assert_same([[(tuple(h.tokens), h.score) for h in answer] for answer in searched], expected)
    assert_same(zero, searched)


def test_answers_end_with_the_positions():
    """Oracle: worked by hand: the last new token is no input, so it needs no position. And the messages."""
    model, params = model_of(replace(ALONE, positions=Learned(max_positions=9)))
    never_ending = constant(params, [0.1, 0.1, 0.1, 1e-9] + 7 * [0.1])
    decoder = Decoder(model, DecodeConfig(max_new_tokens=6))
    lengths = [len(answer[0].tokens) for answer in decoder.generate(never_ending, [[4] * n for n in (2, 6, 9)])]
    assert lengths == [6, 4, 1]
    wrong = {
        r"prompt 1 has 10 tokens.*max_positions is 9": [[4], [4] * 10],
        "prompt 0 has no tokens": [[]],
        "prompt 1 has 50, which is no token id: .* between 0 and 10": [[4], [4, 50]],
    }
    for message, prompts in wrong.items():
        with pytest.raises(ValueError, match=message):
            decoder.generate(params, prompts)
    with pytest.raises(ValueError, match=r"decode.suppress_ids has 11, which is no token id: .* between 0 and 10"):
        Decoder(model, DecodeConfig(suppress_ids=(4, 11)))
    with pytest.raises(ValueError, match=r"decode.beam_size is 2: only decode.beam_size 1 can be streamed"):
        next(Decoder(model, DecodeConfig(beam_size=2)).stream(params, [4]))


@pytest.mark.parametrize("beam_size", quick([1, 2], (1).__eq__))
def test_learned_positions_end_and_bfloat16_sums_are_exact(beam_size):
    """Law: neither an answer nor a source is longer than the learned positions. Oracle of the score: the logits,
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


def test_settings_of_another_program_are_refused_and_a_stream_of_nothing_is_empty():
    model, params = model_of(SMALL)
    decoder = Decoder(model, DecodeConfig(max_new_tokens=4))
    with pytest.raises(ValueError, match=r"settings of another program.*make another Decoder"):
        decoder.generate(params, [[4, EOS], Request([5, EOS], DecodeConfig(beam_size=2, max_new_tokens=4))])
    decoder.check([Request([5, EOS], replace(decoder.config, bos_id=5, repetition_penalty=1.5))])
    assert [*decoder.stream(params, [])] == []


def test_the_positions_of_an_ensemble_are_those_of_all_its_models():
    """Oracle: worked by hand: the member with the fewest positions limits sources and answers, whichever member it is."""
    models = [model_of(replace(SMALL, positions=Learned(max_positions=number)))[0] for number in (9, 5)]
    unlimited, _ = model_of(SMALL)
    for first, *others in itertools.permutations([*models, unlimited]):
        decoder = Decoder((first, *others), DecodeConfig(max_new_tokens=7))
        assert decoder.max_length([4, EOS]) == decoder.max_new_tokens(8) == 5
        (batch,) = decoder.batches([5])
        inputs, settings = decoder.inputs([Row([4, 5, 6, 7, EOS], decoder.config, 5)], batch)
        assert inputs.tokens.shape == (1, 5) and settings.max_new_tokens == 5
        with pytest.raises(
            ValueError, match=r"source 0 has 6 tokens, but model\.positions\.max_positions is 5: shorten it"
        ):
            decoder.check([Request([4] * 6)])


@pytest.mark.slow
def test_a_source_with_its_own_seed_and_limit_is_answered_as_alone():
    """Law: in any batch, the answers under a seed and a limit of their own are those of each source alone."""
    model, params = model_of(ALONE)
    settings = DecodeConfig(sampling=Sampling(temperature=1.5), num_hypotheses=2, batch_tokens=64, max_new_tokens=7)
    prompts, seeds, limits = [[5, 6, 7], [4], [8, 9], [8, 9]], [3, 2**32 - 1, 0, 1], [7, 2, 5, 4]
    decoder = Decoder(model, settings)
    asked = [
        Request(prompt, limit=limit, seed=seed, index=0)
        for prompt, limit, seed in zip(prompts, limits, seeds, strict=True)
    ]
    together = decoder.generate(params, asked)
    for request, found in zip(asked, together, strict=True):
        alone = Decoder(model, replace(settings, max_new_tokens=request.limit))
        assert_same(alone.generate(params, [Request(request.source, seed=request.seed)]), [found])
    parts = list(decoder.stream(params, asked[3]))
    assert [*itertools.chain(*parts)] == together[3][0].tokens
