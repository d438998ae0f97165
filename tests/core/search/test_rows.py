"""Laws of rows that leave a search: their answers are those of the whole search as one program."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.search import DecodeConfig, Request, Sampling
from flaxformer_lite.core.search.beam import BEAM_SEARCH
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.greedy import GREEDY_SEARCH
from flaxformer_lite.core.search.rows import Search
from flaxformer_lite.core.text.special_ids import EOS
from tests.support.experiments import num_programs
from tests.support.reference_search import ALONE, SMALL, VOCAB, compiled, model_of

CASES = {
    "greedy": (ALONE, DecodeConfig(max_new_tokens=40)),
    "beam": (SMALL, DecodeConfig(beam_size=3, num_hypotheses=2, min_new_tokens=79, max_new_tokens=80)),
    "sampled": (ALONE, DecodeConfig(sampling=Sampling(temperature=1.5), repetition_penalty=1.2, max_new_tokens=40)),
    "beam_alone": (replace(ALONE, positions=Learned(max_positions=64)), DecodeConfig(beam_size=2, max_new_tokens=40)),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES])
def test_answers_are_those_of_one_program_and_few_rows_are_left(monkeypatch, case):
    """Law: tokens, lengths and scores of 32 rows, most of them short, equal those of the loop that keeps all rows."""
    config, settings = CASES[case]
    model, params = model_of(config)
    generator = np.random.default_rng(7)
    sources = [[*generator.integers(4, VOCAB, 1 + n % 7).tolist(), EOS] for n in range(30)]
    most = settings.max_new_tokens
    limits = [(1, 3, 5, 9)[n % 4] if n % 9 else (18, 25, most)[n // 9 % 3] for n in range(30)]
    decoder, seen, rows = Decoder(model, settings), [], []
    advance = decoder.search.advance

    def noted(laid_out, inputs, *rest, **options):
        rows.append(len(inputs.max_lengths))
        return advance(laid_out, inputs, *rest, **options)

    monkeypatch.setattr(decoder.search, "advance", noted)
    start = Search.__call__
    monkeypatch.setattr(Search, "__call__", lambda self, *a, **o: seen.append((a[1], a[2])) or start(self, *a, **o))
    found = decoder.generate(
        params, [Request(source, limit=limit) for source, limit in zip(sources, limits, strict=True)]
    )
    ((inputs, constants),) = seen
    method = BEAM_SEARCH if settings.beam_size > 1 else GREEDY_SEARCH
    whole = compiled((model,), method)((params,), inputs, settings=constants)
    tokens, lengths, scores = jax.device_get(whole)
    (batch,) = decoder.batches([len(source) for source in sources])
    for n, source in enumerate(batch.members):
        answers = found[source]
        assert [h.tokens for h in answers] == [tokens[n, k, : lengths[n, k]].tolist() for k in range(len(answers))]
        np.testing.assert_allclose([h.score for h in answers], scores[n, : len(answers)], rtol=1e-6)
    assert rows[0] == 32 and 8 in rows and rows[-1] == (8 if most < 64 else 1), rows
    assert len({len(answers[0].tokens) for answers in found}) > 4, "all answers are of one length"


@pytest.mark.usefixtures("own_programs")
@pytest.mark.parametrize("committed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compiling_ahead_leaves_nothing_to_compile(committed):
    """Law: after `compile` for 8 rows, answers of any length compile nothing more; also of parameters bound to a device."""
    model, params = model_of(SMALL)
    params = jax.device_put(params, jax.devices()[0] if committed else None)
    decoder = Decoder(model, DecodeConfig(max_new_tokens=40))
    decoder.compile(params, 8, [5, 6, 7, 8, 9, EOS])
    parts = (decoder.search.start, decoder.search.advance)
    assert [num_programs(part) for part in parts] == [1, 2]
    decoder.generate(params, [Request([5, 6, EOS], limit=limit) for limit in (1, 40, 3, 20, 33)])
    never = [lambda tokens: None, lambda tokens: 1]
    asked = [Request([5, 6, EOS], limit=limit) for limit in (2, 40, 3, 20, 33)]
    decoder.generate(params, asked, watch=lambda index: never[index % 2])
    assert [num_programs(part) for part in parts] == [1, 2]


def test_weights_that_are_laid_out_once_serve_every_search():
    """Law: answers by weights are those by variables, and to lay them out again is to copy."""
    model, params = model_of(SMALL)
    decoder, copies = Decoder(model, DecodeConfig(max_new_tokens=4)), []
    copied = decoder._copies
    decoder._copies = lambda *arguments: copies.append(1) or copied(*arguments)
    weights, asked = decoder.lay_out(params), [[5, 6, EOS], [7, EOS]]
    answers = [decoder.generate(weights, asked) for _ in range(2)]
    assert answers[0] == answers[1] and len(copies) == 1
    assert decoder.generate(params, asked) == answers[0] and len(copies) == 2


@pytest.mark.usefixtures("own_programs")
def test_no_parameter_is_copied_for_a_search_on_an_accelerator(monkeypatch: pytest.MonkeyPatch):
    """Law: what steps read are the arrays that were given; a tied table alone has a copy, in the layout of the head's product."""
    monkeypatch.setattr("flaxformer_lite.core.model.fast.platform", lambda: "gpu")
    for config, copies in ((SMALL, 1), (replace(SMALL, share_target_output=False), 0)):
        model, params = model_of(config)
        weights = Decoder(model, DecodeConfig()).lay_out(params)
        given = {id(x) for x in jax.tree.leaves(params)}
        assert sum(id(x) not in given for x in jax.tree.leaves(weights.laid_out)) == copies
