"""Laws of the objectives and rows worked by hand; how pairs become batches is tested with the pipeline."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.data.dataset import Dataset
from flaxformer_lite.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.model.config import ModelConfig, Pooler
from flaxformer_lite.model.inputs import Inputs, Outputs
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.objectives import (
    Batch,
    CausalLM,
    Classification,
    MaskedLM,
    Regression,
    SentenceEmbeddings,
    Seq2Seq,
    SpanCorruption,
)
from flaxformer_lite.objectives.corruption import with_sentinels
from flaxformer_lite.text.characters import CharacterTokenizer
from flaxformer_lite.text.special_ids import BOS, EOS, PAD
from flaxformer_lite.training.evaluation import merge_counts
from flaxformer_lite.training.step import total

V = 7


def record(source: list[int], target: list[int]) -> TokenPair:
    return TokenPair(np.asarray(source, np.int32), np.asarray(target, np.int32))


def outputs(logits: np.ndarray) -> Outputs:
    return Outputs(logits=jnp.asarray(logits), hidden=jnp.zeros((1, 1, 1)), memory=jnp.zeros((1, 1, 1)))


def one_row(pair: TokenPair, lengths: Lengths) -> Batch:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], Seq2Seq().example(pair, lengths))


def test_lengths_count_the_special_tokens():
    assert Seq2Seq().lengths(record([4, 5, 6], [5])) == Lengths(4, 2)


def test_evaluation_does_not_smooth():
    """Oracle: -log softmax by hand. Logits 0 everywhere but log 2 at the target: p = 2 / (V + 1)."""
    batch = one_row(record([4], [5, 6]), Lengths(2, 4))
    logits = np.zeros((1, 4, V), np.float32)
    for position, target in enumerate(batch.targets[0]):
        logits[0, position, target] = np.log(2)
    for smoothing in (0.0, 0.3):
        term = jax.jit(Seq2Seq(label_smoothing=smoothing).metrics)(outputs(logits), batch)["loss"]
        assert float(term.count) == 3  # two tokens and EOS
        np.testing.assert_allclose(float(term.sum), 3 * np.log((V + 1) / 2), rtol=1e-6)


def test_smoothing_is_part_of_the_training_loss():
    """Oracle: by hand. Smoothing moves e of the weight from the target to the mean over V classes."""
    batch = one_row(record([4], [5]), Lengths(2, 2))
    logits = np.zeros((1, 2, V), np.float32)
    logits[0, [0, 1], np.asarray(batch.targets[0])] = np.log(2)
    term = jax.jit(Seq2Seq(label_smoothing=0.3).loss)(outputs(logits), batch)["cross_entropy"]
    each = np.log(V + 1) - 0.7 * np.log(2) - 0.3 * np.log(2) / V
    np.testing.assert_allclose(float(term.sum), 2 * each, rtol=1e-6)


def test_a_smoothing_outside_0_to_1_is_refused():
    with pytest.raises(ValueError, match=r"objective\.label_smoothing is 1\.0"):
        Seq2Seq(label_smoothing=1.0)


# Causal language models --------------------------------------------------------------------------------------------------


def some_documents(number: int = 23, vocab_size: int = 29) -> list[TokenPair]:
    rng = np.random.default_rng(5)
    return [record([], rng.integers(4, vocab_size, rng.integers(0, 31)).tolist()) for _ in range(number)]


def test_a_pack_by_hand():
    """A document's second piece, which begins with the last token of its first, and a short document."""
    pack = Pack((np.array([8, 9, 10, EOS], np.int32), np.array([BOS, 5, EOS], np.int32)))
    assert CausalLM().lengths(pack) == Lengths(0, 5)
    inputs, targets, weights, _ = CausalLM().example(pack, Lengths(0, 7))
    assert inputs.target_tokens.tolist() == [8, 9, 10, BOS, 5, PAD, PAD]
    assert targets.tolist() == [9, 10, EOS, 5, EOS, PAD, PAD]
    assert inputs.target_positions.tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert inputs.target_segments.tolist() == [1, 1, 1, 2, 2, 0, 0]
    assert inputs.target_mask.tolist() == [True] * 5 + [False] * 2
    assert weights.tolist() == [1] * 5 + [0] * 2


def test_every_token_is_predicted_exactly_once_an_epoch():
    """Oracle: the multiset of (token before, token) over all documents, and over all positions that count in an epoch."""
    documents = some_documents()
    data = DataConfig(max_target_length=7, tokens_per_batch=35, rows_multiple=5)
    dataset = Dataset(documents, CausalLM(), data, seed=3)
    assert dataset.dropped == 0
    wanted = sorted(
        pair for d in documents for pair in zip([BOS, *d.target.tolist()], [*d.target.tolist(), EOS], strict=True)
    )
    positions = 0
    for epoch in range(2):
        found = []
        for step in range(epoch * dataset.plan.batches_per_epoch, (epoch + 1) * dataset.plan.batches_per_epoch):
            batch = dataset.batch(step)
            assert batch.targets.shape == (5, 7)
            counts = batch.weights > 0
            positions += counts.size
            found += zip(batch.inputs.target_tokens[counts].tolist(), batch.targets[counts].tolist(), strict=True)
        assert sorted(found) == wanted
    assert dataset.padding == pytest.approx(1 - 2 * len(wanted) / positions)


@pytest.fixture(scope="module")
def decoder() -> Transformer:
    return Transformer(
        ModelConfig(
            vocab_size=29,
            d_model=6,
            num_heads=3,
            d_ff=7,
            num_encoder_layers=0,
            num_decoder_layers=2,
        )
    )


def test_packed_documents_lose_what_they_lose_on_their_own(decoder: Transformer):
    """Law: the sums of the loss and of right tokens over packs are those over rows of one piece each."""
    pieces = CausalLM().make_rows(some_documents(11), Lengths(0, 11), 0)
    alone = [Pack((piece,)) for pack in pieces for piece in pack.pieces]
    assert len(pieces) < len(alone)
    params = decoder.init(jax.random.key(1), Inputs(target_tokens=jnp.zeros((1, 1), jnp.int32)))
    params = jax.tree.map(lambda x: 3 * x, params)

    @jax.jit
    def measure(batch: Batch):
        return CausalLM().metrics(decoder.apply(params, batch.inputs), batch)

    sums = []
    for packs in (pieces, alone):
        rows = [CausalLM().example(pack, Lengths(0, 11)) for pack in packs]
        found = measure(jax.tree.map(lambda *x: jnp.stack(x), *rows))
        sums.append([float(number) for name in ("loss", "accuracy") for number in found[name][:2]])
    assert sums[0][1] == sum(len(d.target) + 1 for d in some_documents(11))
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-5)


def test_the_z_loss_is_a_term_of_training_with_its_weight():
    """Oracle: by hand. One position, V scores of 0: cross-entropy log V, z-loss (log V)²; evaluation has none."""
    pack = Pack((np.array([BOS, EOS], np.int32),))
    batch = jax.tree.map(lambda x: jnp.asarray(x)[None], CausalLM().example(pack, Lengths(0, 1)))
    scores = outputs(np.zeros((1, 1, V), np.float32))
    objective = CausalLM(z_loss=0.5)
    terms = objective.loss(scores, batch)
    loss = total(terms, {name: term.count for name, term in terms.items()})
    assert float(loss) == pytest.approx(np.log(V) + 0.5 * np.log(V) ** 2, rel=1e-6)
    assert float(objective.metrics(scores, batch)["loss"].sum) == pytest.approx(np.log(V), rel=1e-6)
    assert CausalLM().loss(scores, batch).keys() == {"cross_entropy"}
    with pytest.raises(ValueError, match=r"objective\.z_loss is -1"):
        CausalLM(z_loss=-1)


def test_pairs_are_no_documents():
    with pytest.raises(ValueError, match=r"objective\.kind is 'causal_lm'.*record 1 "):
        Dataset([record([4], [5])], CausalLM(), DataConfig(), seed=0)


def test_an_objective_knows_its_model(decoder: Transformer):
    both = ModelConfig(vocab_size=29)
    Seq2Seq().check_model(both)
    CausalLM().check_model(decoder.config)
    for objective, model, words in (
        (CausalLM(), both, r"^model\.num_encoder_layers is 6, but .*'causal_lm'.* without encoder: set it to 0"),
        (
            Seq2Seq(),
            decoder.config,
            r"^model\.num_encoder_layers is 0, but .*'seq2seq'.* with encoder: give at least 1",
        ),
        (CausalLM(), dataclasses.replace(decoder.config, head=None), r"^model\.head is None.*'causal_lm'"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            objective.check_model(model)
        assert "\n" not in str(caught.value)


# Masked language models --------------------------------------------------------------------------------------------------

MASK = 28


def generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=list(key)))


def uncovered(batch: Batch) -> list[int]:
    """The row of a masked batch with what is to be told put back."""
    tokens = np.asarray(batch.inputs.source_tokens).copy()
    counts = batch.weights > 0
    tokens[batch.inputs.predict_positions[counts]] = batch.targets[counts]
    return tokens.tolist()


def test_a_masked_row_by_hand():
    """Two pieces between BOS and EOS in a row of 14: 8 tokens of which round(0.25 · 8) = 2 are to be told, in ceil(0.25 · 14)."""
    objective = MaskedLM(mask_token=MASK, mask_rate=0.25)
    pack = Pack((np.array([4, 5, 6, 7, 8], np.int32), np.array([9, 10, 11], np.int32)))
    assert objective.lengths(pack) == Lengths(12, 0)
    batch = objective.example(pack, Lengths(14, 0), generator(1, 2))
    assert uncovered(batch) == [BOS, 4, 5, 6, 7, 8, EOS, BOS, 9, 10, 11, EOS, PAD, PAD]
    assert batch.inputs.source_positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 0, 0]
    assert batch.inputs.source_segments.tolist() == [1] * 7 + [2] * 5 + [0] * 2
    assert batch.inputs.source_mask.tolist() == [True] * 12 + [False] * 2
    assert batch.weights.tolist() == [1, 1, 0, 0]
    assert batch.targets[2:].tolist() == batch.inputs.predict_positions[2:].tolist() == [0, 0]


def masked_rows(objective: MaskedLM, number: int = 300) -> list[Batch]:
    packs = objective.make_rows([record([], np.arange(4, 26).tolist() * 5)], Lengths(112, 0), 0)
    return [objective.example(packs[0], Lengths(112, 0), generator(7, i)) for i in range(number)]


def test_of_the_chosen_tokens_80_percent_are_covered_10_random_10_kept():
    """Law, within four standard deviations. A random token is drawn from 24 ids, so 1 of 24 of them looks kept."""
    rows = masked_rows(MaskedLM(mask_token=MASK))
    seen = np.concatenate([row.inputs.source_tokens[row.inputs.predict_positions[row.weights > 0]] for row in rows])
    told = np.concatenate([row.targets[row.weights > 0] for row in rows])
    assert len(seen) == 300 * round(0.15 * 110)
    for share, found in (
        (0.8, seen == MASK),
        (0.1 + 0.1 / 24, seen == told),
        (0.1 * 23 / 24, (seen != MASK) & (seen != told)),
    ):
        assert abs(found.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(seen))
    assert seen.min() == EOS + 1 and seen.max() == MASK
    places = np.concatenate([row.inputs.predict_positions[row.weights > 0] for row in rows])
    assert set(places.tolist()) == set(range(1, 111))  # never BOS or EOS, and every token now and then


def test_masks_are_a_function_of_seed_and_step_only():
    """Law: again and in another data set the same; another step, row or seed draws others."""
    objective, documents = MaskedLM(mask_token=MASK), some_documents(vocab_size=MASK)
    data = DataConfig(max_source_length=17, tokens_per_batch=85, rows_multiple=5)
    first, again, other = (Dataset(documents, objective, data, seed=seed) for seed in (3, 3, 4))

    def masks(dataset: Dataset, step: int) -> list:
        inputs = dataset.batch(step).inputs
        return [inputs.predict_positions.tolist(), inputs.source_tokens.tolist()]

    assert masks(first, 1) == masks(again, 1)
    epoch = first.plan.batches_per_epoch
    assert masks(first, 1) == masks(first, 1) != masks(first, 1 + epoch)
    assert masks(first, 1) != masks(other, 1)

    def drawn(step: int, row: int) -> list:
        return [
            first.example(i, Lengths(17, 0), step, row).inputs.predict_positions.tolist()
            for i in range(len(first.records))
        ]

    assert drawn(5, 0) == drawn(5, 0)
    assert drawn(5, 0) != drawn(5, 1) != drawn(6, 0) != drawn(5, 0)


def test_evaluation_masks_are_a_function_of_the_example_alone():
    """Law: wherever the row comes, in whatever company, it is covered alike."""
    objective, documents = MaskedLM(mask_token=MASK), [record([], list(range(4 + i, 19 + i))) for i in range(9)]
    data = DataConfig(max_source_length=17, tokens_per_batch=85, rows_multiple=5)
    found = []
    for some in (documents, documents[3:]):
        dataset = Dataset(some, objective, data, seed=None)
        rows = {}
        for step in range(dataset.plan.batches_per_epoch):
            inputs, targets = dataset.batch(step)[:2]
            for tokens, places, wanted in zip(inputs.source_tokens, inputs.predict_positions, targets, strict=True):
                rows[uncovered_key(tokens, places, wanted)] = tokens.tolist()
        found.append(rows)
    shared = found[0].keys() & found[1].keys()
    assert len(shared) >= 6 and all(found[0][key] == found[1][key] for key in shared)
    assert len({tuple(row) for row in found[0].values()}) >= 9


def uncovered_key(tokens: np.ndarray, places: np.ndarray, wanted: np.ndarray) -> tuple[int, ...]:
    whole = tokens.copy()
    whole[places[wanted > 0]] = wanted[wanted > 0]
    return tuple(whole.tolist())


def test_whole_words_are_chosen_whole():
    """Law: of each word all tokens are to be told or none; words end at white space. Oracle: the text split by hand."""
    text = "ab cde f ghij ab k"
    tokenizer = CharacterTokenizer(sorted(set(text)))
    document = record([], tokenizer.encode(text))
    words = [range(1, 3), range(4, 7), [8], range(10, 14), range(15, 17), [18], *([i] for i in (3, 7, 9, 14, 17))]
    for whole in (True, False):
        objective = MaskedLM(mask_token=MASK, mask_rate=0.3, whole_words=whole)
        (pack,) = objective.make_rows([document], Lengths(20, 0), 0, tokenizer)
        broken, most = 0, 0
        for i in range(100):
            batch = objective.example(pack, Lengths(20, 0), generator(i, 0))
            chosen = set(batch.inputs.predict_positions[batch.weights > 0].tolist())
            broken += any(0 < len(chosen & set(word)) < len(word) for word in words)
            most = max(most, len(chosen))
        assert (broken == 0) == whole
        assert most == round(0.3 * 18)


# Span corruption ---------------------------------------------------------------------------------------------------------


def test_spans_by_hand():
    """10 tokens, two spans of two: sentinels 28 and 27 stand for them, and name them in the target."""
    text = np.arange(4, 14)
    left_out = np.array([0, 0, 1, 1, 0, 0, 0, 1, 1, 0], bool)
    assert with_sentinels(text, left_out, 28).tolist() == [4, 5, 28, 8, 9, 10, 27, 13]
    assert with_sentinels(text, ~left_out, 28).tolist() == [28, 6, 7, 27, 11, 12, 26]
    assert with_sentinels(text[:0], left_out[:0], 28).tolist() == []


@pytest.mark.parametrize(("density", "mean_span"), [(0.15, 3.0), (0.5, 2.0), (0.3, 1.0)])
def test_source_and_target_give_back_the_text(density: float, mean_span: float):
    """Law: each sentinel of the source stands for what follows it in the target; shares and lengths are those asked for."""
    objective = SpanCorruption(first_sentinel=99, num_sentinels=40, noise_density=density, mean_span=mean_span)
    lengths = Lengths(41, 23)
    documents = some_documents(40, vocab_size=59)
    noise = 0
    for i, pack in enumerate(objective.make_rows(documents, lengths, 0)):
        batch = objective.example(pack, lengths, generator(i, 1))
        source, target = (
            np.asarray(tokens)[counts].tolist()[:-1]
            for tokens, counts in (
                (batch.inputs.source_tokens, batch.inputs.source_mask),
                (batch.targets, batch.weights > 0),
            )
        )
        assert objective.lengths(pack) == (len(source) + 1, len(target) + 1)
        spans: dict[int, list[int]] = {}
        for token in target:
            if token > 59:
                spans[token] = []
            else:
                spans[list(spans)[-1]].append(token)
        assert list(spans) == [99 - j for j in range(len(spans))]
        told = [t for token in source for t in (spans[token] if token > 59 else [token])]
        if len(pack.pieces[0]) > 1:
            assert told == pack.pieces[0].tolist()
            assert len(target) - len(spans) == min(max(round(density * len(told)), 1), len(told) - 1)
            noise += len(spans)
    assert noise > 30


def test_pieces_are_as_long_as_both_sides_have_room():
    """Oracle: every longer piece tried; 512 tokens to read take 568 of text, as the paper's have, and 114 to write."""
    objective = SpanCorruption(first_sentinel=9_999)
    (first, *_) = objective.make_rows([record([], [5] * 2000)], Lengths(512, 512), 0)
    assert len(first.pieces[0]) == 568
    assert objective.lengths(first) == (512, 114)
    for longest in (Lengths(512, 50), Lengths(30, 512)):
        (first, *_) = objective.make_rows([record([], [5] * 2000)], longest, 0)
        here, more = (objective.room(len(first.pieces[0]) + n) for n in (0, 1))
        assert all(n <= room for n, room in zip(here, longest, strict=True))
        assert not all(n <= room for n, room in zip(more, longest, strict=True))
    with pytest.raises(ValueError, match=r"room for 28 spans a row, and objective\.num_sentinels is 27"):
        SpanCorruption(first_sentinel=99, num_sentinels=27).make_rows([record([], [5])], Lengths(512, 512), 0)


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        (MaskedLM(mask_token=29), r"^objective\.mask_token is 29, but model\.vocab_size is 29.*set it to 28"),
        (SpanCorruption(first_sentinel=29, num_sentinels=2), r"^objective\.first_sentinel is 29, .*set it to 28"),
    ],
)
def test_the_objectives_own_ids_are_ids_of_the_vocabulary(objective: MaskedLM | SpanCorruption, words: str):
    model = ModelConfig(vocab_size=29, num_decoder_layers=0 if isinstance(objective, MaskedLM) else 6)
    with pytest.raises(ValueError, match=words):
        objective.check_model(model)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MaskedLM(mask_token=3), "objective.mask_token is 3"),
        (lambda: MaskedLM(mask_token=9, mask_rate=1.0), "objective.mask_rate is 1.0"),
        (lambda: SpanCorruption(first_sentinel=99, noise_density=0.0), "objective.noise_density is 0.0"),
        (lambda: SpanCorruption(first_sentinel=99, mean_span=0.5), "objective.mean_span is 0.5"),
        (lambda: SpanCorruption(first_sentinel=99, num_sentinels=96), "objective.num_sentinels is 96"),
    ],
)
def test_impossible_settings_are_refused(make, words: str):
    with pytest.raises(ValueError, match=words):
        make()


# Pairs of texts ----------------------------------------------------------------------------------------------------------


def paired(number: int = 12, length: int = 40) -> list[TokenPair]:
    """Documents of which no two share a token."""
    return [record([], list(range(100 * i, 100 * i + length))) for i in range(1, number + 1)]


def test_a_pair_of_texts_by_hand():
    """BOS A EOS B EOS, types 0 and 1, positions from 0, one segment; 40 tokens in pieces of at most 19 are four of 10."""
    objective = MaskedLM(mask_token=5000, next_sentence=True)
    packs = objective.make_rows(paired(), Lengths(41, 0), 0)
    assert len(packs) == 24 and all(len(piece) == 10 for pack in packs for piece in pack.pieces)
    assert packs[0].pieces[0].tolist() == list(range(100, 110)) and packs[0].pieces[1].tolist() == list(range(110, 120))
    assert packs[1].pieces[0].tolist() == list(range(120, 130))
    assert objective.lengths(packs[0]) == Lengths(23, 0)
    row = objective.example(packs[0], Lengths(25, 0), generator(1, 2))
    tokens = uncovered(row)
    assert [tokens[i] for i in (0, 11, 22, 23, 24)] == [BOS, EOS, EOS, PAD, PAD]
    assert row.inputs.token_types.tolist() == [0] * 12 + [1] * 11 + [0] * 2
    assert row.inputs.source_positions.tolist() == [*range(23), 0, 0]
    assert row.inputs.source_segments.tolist() == [1] * 23 + [0] * 2
    assert not {0, 11, 22, 23, 24} & set(row.inputs.predict_positions[row.weights > 0].tolist())


def test_half_of_the_texts_follow_and_the_others_are_of_other_documents():
    """Law, within four standard deviations; label 0 says that the text follows. Oracle: the tokens tell their document."""
    objective = MaskedLM(mask_token=5000, next_sentence=True)
    packs = objective.make_rows(paired(), Lengths(41, 0), 0)
    follows, strangers = 0, set()
    for i, pack in enumerate(packs):
        row = objective.example(pack, Lengths(41, 0), generator(2, i))
        for step in range(20):
            row = objective.example(pack, Lengths(41, 0), generator(2, 1000 * step + i))
            tokens = [token for token in uncovered(row) if token > EOS]
            first, second = tokens[:10], tokens[10:]
            assert (second[0] == first[-1] + 1) == (int(row.labels) == 0)
            if int(row.labels) == 1:
                assert second[0] // 100 != first[0] // 100
                strangers.add(second[0] // 100)
            follows += int(row.labels) == 0
    assert abs(follows / 480 - 0.5) < 4 * 0.5 / np.sqrt(480)
    assert len(strangers) == 12


def test_next_sentences_are_a_function_of_seed_and_step_and_need_two_documents():
    objective = MaskedLM(mask_token=5000, next_sentence=True)
    data = DataConfig(max_source_length=41, tokens_per_batch=41 * 8, rows_multiple=8)
    first, again, other = (Dataset(paired(), objective, data, seed=seed) for seed in (3, 3, 4))
    drawn = [jax.tree.map(np.asarray, dataset.batch(1)) for dataset in (first, again, other)]
    same = jax.tree.map(np.array_equal, drawn[0], drawn[1])
    assert all(jax.tree.leaves(same)) and not np.array_equal(drawn[0].labels, drawn[2].labels)
    with pytest.raises(ValueError, match=r"^objective\.next_sentence needs texts of other documents"):
        Dataset([*paired(1), record([], [5])], objective, data, seed=0)


# Special ids from elsewhere ----------------------------------------------------------------------------------------------


class Theirs(CharacterTokenizer):
    """Characters with other special ids; the first four ids are free."""

    pad_id, unk_id, bos_id, eos_id, mask_id = 20, 21, 22, 23, 24


class NoBeginning(Theirs):
    """One that begins no text, as T5's."""

    bos_id = None


def theirs(objective, documents: list[TokenPair], tokenizer: CharacterTokenizer, start_id: int = BOS) -> Batch:
    data = DataConfig(
        max_source_length=9, max_target_length=9, tokens_per_batch=9, rows_multiple=1, bucket_lengths=(9,)
    )
    return Dataset(documents, objective, data, None, tokenizer, start_id).batch(0)


def test_rows_have_the_tokenizers_own_special_ids():
    tokenizer, plain = Theirs("abcdefghijklmnop"), NoBeginning("abcdefghijklmnop")
    text = record([], [4, 5, 6])
    batch = theirs(CausalLM(), [text], tokenizer)
    assert batch.inputs.target_tokens.tolist() == [[22, 4, 5, 6, 20, 20, 20, 20, 20]]
    assert batch.targets.tolist() == [[4, 5, 6, 23, 20, 20, 20, 20, 20]]
    assert theirs(CausalLM(), [text], plain).inputs.target_tokens.tolist() == [[4, 5, 6] + [20] * 6]
    batch = theirs(Seq2Seq(), [record([7, 8], [4, 5])], plain, start_id=20)
    assert batch.inputs.source_tokens.tolist() == [[7, 8, 23] + [20] * 6]
    assert batch.inputs.target_tokens.tolist() == [[20, 4, 5] + [20] * 6]
    assert batch.targets.tolist() == [[4, 5, 23] + [20] * 6]
    objective = MaskedLM(mask_rate=0.9)
    batch = theirs(objective, [record([], [4, 5, 6, 7, 8])], tokenizer)
    assert uncovered(jax.tree.map(lambda x: x[0], batch)) == [22, 4, 5, 6, 7, 8, 23, 20, 20]
    assert 24 in batch.inputs.source_tokens
    batch = theirs(objective, [record([], [4, 5, 6, 7, 8])], plain)
    assert uncovered(jax.tree.map(lambda x: x[0], batch)) == [4, 5, 6, 7, 8, 23, 20, 20, 20]


def test_a_mask_is_the_tokenizers_or_a_free_id():
    documents = [record([], [4, 5, 6])]
    with pytest.raises(ValueError, match=r"^objective\.mask_token is None, but the tokenizer has no id for the mask"):
        theirs(MaskedLM(), documents, CharacterTokenizer("abc"))
    with pytest.raises(ValueError, match=r"^objective\.mask_token is 6, which is a token of the tokenizer's 7"):
        theirs(MaskedLM(mask_token=6), documents, CharacterTokenizer("abc"))
    theirs(MaskedLM(mask_token=7), documents, CharacterTokenizer("abc"))


def test_a_sentinel_is_no_piece_of_text():
    tokenizer = CharacterTokenizer("abcdef")
    SpanCorruption(first_sentinel=11, num_sentinels=2).make_rows([record([], [5])], Lengths(9, 9), 0, tokenizer)
    with pytest.raises(ValueError, match=r"make 9 a sentinel, but for the tokenizer it is the piece 'f'"):
        SpanCorruption(first_sentinel=10, num_sentinels=2).make_rows([record([], [5])], Lengths(9, 9), 0, tokenizer)


# Whole texts -------------------------------------------------------------------------------------------------------------

YES_NO = Classification(classes=("yes", "no"))


def labelled(source: list[int], target: list[int], label: str) -> TokenPair:
    return record(source, target)._replace(label=label)


def test_texts_and_pairs_by_hand():
    """BOS A EOS, BOS A EOS B EOS with types 0 and 1, the longer text cut first, classes by their place and numbers as they are."""
    tokenizer = CharacterTokenizer("abcdefghijklmnop")
    rows = YES_NO.make_rows(
        [labelled([], [4, 5], "no"), labelled([6], [4, 5, 7, 8], "yes"), labelled([6, 7, 8], [9, 10, 11, 12], "yes")],
        Lengths(7, 0), 0, tokenizer,
    )  # fmt: skip
    assert [row.tokens.tolist() for row in rows] == [
        [BOS, 4, 5, EOS],
        [BOS, 6, EOS, 4, 5, 7, EOS],
        [BOS, 6, 7, EOS, 9, 10, EOS],
    ]
    assert [row.types.tolist() for row in rows] == [[0] * 4, [0] * 3 + [1] * 4, [0] * 4 + [1] * 3]
    assert [row.label for row in rows] == [1, 0, 0]
    assert [YES_NO.lengths(row) for row in rows] == [Lengths(4, 0), Lengths(7, 0), Lengths(7, 0)]
    batch = YES_NO.example(rows[0], Lengths(6, 0))
    assert batch.inputs.source_tokens.tolist() == [BOS, 4, 5, EOS, PAD, PAD]
    assert batch.inputs.source_mask.tolist() == [True] * 4 + [False] * 2
    assert (batch.targets.tolist(), batch.weights.tolist()) == ([1], [1])
    (row,) = Regression().make_rows([labelled([], [4], "-2.5")], Lengths(7, 0), 0, tokenizer)
    assert Regression().example(row, Lengths(6, 0)).targets.tolist() == [-2.5]


@pytest.mark.parametrize(
    ("objective", "label", "words"),
    [
        (
            YES_NO,
            "maybe",
            r"^record 2 of the data has the label 'maybe', which is none of objective\.classes \(yes, no\)",
        ),
        (YES_NO, "", r"^record 2 of the data has the label '', "),
        (Regression(), "much", r"^record 2 of the data has the label 'much', which is no number"),
        (Regression(), "nan", r"which is no number"),
    ],
)
def test_labels_that_are_none_are_located(objective: Classification | Regression, label: str, words: str):
    good = labelled([], [4], "yes" if objective is YES_NO else "1")
    with pytest.raises(ValueError, match=words):
        objective.make_rows([good, labelled([], [4], label)], Lengths(7, 0), 0, CharacterTokenizer("abc"))


def in_batches(objective, scores: np.ndarray, targets: np.ndarray, size: int) -> dict[str, float]:
    """What is reported of texts scored so, counted in batches whose last has rows of weight 0."""
    found, measure = [], jax.jit(objective.metrics)
    for start in range(0, len(scores), size):
        rows = slice(start, start + size)
        lacking = size - len(scores[rows])
        batch = Batch(
            Inputs(),
            jnp.asarray(np.pad(targets[rows], (0, lacking)))[:, None],
            jnp.asarray(np.pad(np.ones(size - lacking, np.float32), (0, lacking)))[:, None],
        )
        logits = jnp.asarray(np.pad(scores[rows], ((0, lacking), (0, 0)), constant_values=3.0))
        found.append(jax.device_get(measure(Outputs(class_logits=logits), batch)))
    return objective.report({name: merge_counts([counted[name] for counted in found]) for name in found[0]})


def test_figures_of_classes_equal_their_definitions():
    """Oracles, one text at a time: the share told right; F1 from precision and recall; Matthews by indicators."""
    rng = np.random.default_rng(8)
    for classes in (2, 3, 5):
        scores, targets = rng.normal(size=(47, classes)).astype(np.float32), rng.integers(0, classes, 47)
        scores[np.arange(47), targets] += 0.7
        said = scores.argmax(1)
        f1s = []
        for c in range(classes):
            right = sum(s == t == c for s, t in zip(said, targets, strict=True))
            precision, recall = right / max(1, (said == c).sum()), right / max(1, (targets == c).sum())
            f1s.append(2 * precision * recall / (precision + recall) if right else 0)
        x, y = (np.eye(classes)[which] - np.eye(classes)[which].mean(0) for which in (said, targets))
        probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        objective = Classification(classes=tuple("abcde"[:classes]))
        found = in_batches(objective, scores, targets.astype(np.int32), 10)
        wanted = {
            "loss": -np.log(probabilities[np.arange(47), targets]).mean(),
            "accuracy": (said == targets).mean(),
            "macro_f1": np.mean(f1s),
            "matthews": (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()),
        }
        wanted |= {"f1": f1s[1]} if classes == 2 else {}
        assert found.keys() == set(objective.metric_names) and found == pytest.approx(wanted, rel=1e-5)


def test_figures_of_two_classes_by_hand():
    """Right 3 of 5 positives and 4 of 6 negatives: F1 = 6 / (6 + 2 + 2), Matthews = (3·4 - 2·2) / sqrt(5·5·6·6)."""
    said = np.array([1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0])
    targets = np.array([1] * 5 + [0] * 6, np.int32)
    found = in_batches(YES_NO, np.eye(2, dtype=np.float32)[said], targets, 11)
    assert found["f1"] == pytest.approx(0.6) and found["matthews"] == pytest.approx(8 / 30)
    one = in_batches(Classification(classes=("a", "b", "c")), np.eye(3, dtype=np.float32)[[1, 1]], np.int32([1, 1]), 2)
    assert (one["accuracy"], one["macro_f1"], one["matthews"]) == (1, 1, 0)  # a class that never occurs is no mistake


def test_figures_of_numbers_equal_their_definitions():
    """Oracles: NumPy's corrcoef, of the numbers (far from 0, where sums of squares would cancel) and of ranks by counting."""
    rng = np.random.default_rng(9)
    targets = np.float32(4000 + rng.integers(0, 9, 53))
    scores = np.float32(targets + rng.normal(size=53))[:, None]
    found = in_batches(Regression(), scores, targets, 10)

    def rank(values: np.ndarray) -> list[float]:
        return [(values < v).sum() + ((values == v).sum() - 1) / 2 for v in values]

    said = scores[:, 0].astype(np.float64)
    assert found == {
        "loss": pytest.approx(np.mean((said - targets) ** 2), rel=1e-6),
        "pearson": pytest.approx(np.corrcoef(said, targets)[0, 1], rel=1e-9),
        "spearman": pytest.approx(np.corrcoef(rank(said), rank(targets))[0, 1], rel=1e-9),
    }
    assert in_batches(Regression(), np.ones((3, 1), np.float32), targets[:3], 3)["pearson"] == 0


def test_the_loss_of_numbers_is_the_squared_error():
    batch = Batch(Inputs(), jnp.array([[1.0], [2.0], [9.0]]), jnp.array([[1.0], [1.0], [0.0]]))
    term = Regression().loss(Outputs(class_logits=jnp.array([[0.5], [4.0], [0.0]])), batch)["squared_error"]
    assert (float(term.sum), float(term.count)) == (4.25, 2)


def test_embeddings_are_compared_with_all_of_the_batch_but_empty_rows():
    """Oracle: cosines one by one, in float64; a row of weight 0 is no wrong answer, whatever its vector."""
    rng = np.random.default_rng(10)
    vectors = rng.normal(size=(4, 2, 5)) * rng.uniform(0.5, 2, size=(4, 2, 1))
    objective = SentenceEmbeddings(temperature=0.3)
    batch = Batch(Inputs(), jnp.zeros((4, 1), jnp.int32), jnp.array([[1.0], [1.0], [1.0], [0.0]]))
    found = jax.jit(objective.metrics)(Outputs(embedding=jnp.asarray(vectors.reshape(8, 5), jnp.float32)), batch)
    loss, right = 0.0, 0
    for i in range(3):
        a = vectors[i, 0]
        cosines = [a @ vectors[j, 1] / np.linalg.norm(a) / np.linalg.norm(vectors[j, 1]) / 0.3 for j in range(3)]
        loss += np.log(np.exp(cosines).sum()) - cosines[i]
        right += int(np.argmax(cosines) == i)
    assert float(found["loss"].sum) == pytest.approx(loss, rel=1e-5) and float(found["loss"].count) == 3
    assert (float(found["accuracy"].sum), float(found["accuracy"].count)) == (right, 3)


def test_both_texts_of_a_pair_are_rows_of_the_model():
    objective = SentenceEmbeddings()
    (pack,) = objective.make_rows([record([4, 5], [6])], Lengths(9, 0), 0, CharacterTokenizer("abc"))
    assert objective.lengths(pack) == Lengths(4, 0)
    batch = jax.tree.map(lambda x: np.stack([x, x]), objective.example(pack, Lengths(5, 0)))
    model = ModelConfig(vocab_size=29, num_decoder_layers=0, num_token_types=1)
    inputs = objective.inputs(batch, model)
    assert inputs.source_tokens.tolist() == [[BOS, 4, 5, EOS, PAD], [BOS, 6, EOS, PAD, PAD]] * 2
    assert inputs.source_mask.tolist() == [[True] * 4 + [False], [True] * 3 + [False] * 2] * 2
    assert not inputs.token_types.any()
    with pytest.raises(
        ValueError, match=r"^objective\.kind is 'sentence_embeddings', .* record 1 of the data has no source"
    ):
        objective.make_rows([record([], [6])], Lengths(9, 0), 0, CharacterTokenizer("abc"))


@pytest.mark.parametrize(
    ("objective", "changes", "words"),
    [
        (
            YES_NO,
            {},
            r"^model\.pooler is None, but objective\.kind 'classification' needs 2: .*Pooler\(num_classes=2\)",
        ),
        (YES_NO, {"pooler": Pooler(num_classes=3)}, r"^model\.pooler is one of 3 classes, but"),
        (Regression(), {"pooler": Pooler(num_classes=2)}, r"^model\.pooler is one of 2 classes, .* needs 1"),
        (SentenceEmbeddings(), {}, r"^model\.sentence_embedding is None, but objective\.kind 'sentence_embeddings'"),
        (
            YES_NO,
            {"num_decoder_layers": 1},
            r"^the model has an encoder and a decoder .*'classification' reads whole texts",
        ),
    ],
)
def test_whole_texts_need_a_model_with_the_part(objective, changes: dict, words: str):
    with pytest.raises(ValueError, match=words):
        objective.check_model(ModelConfig(**{"vocab_size": 29, "num_decoder_layers": 0, **changes}))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Classification(classes=("a",)), r"objective\.classes is \('a',\): give at least 2"),
        (lambda: Classification(classes=("a", "a")), r"objective\.classes is \('a', 'a'\)"),
        (lambda: SentenceEmbeddings(temperature=0.0), r"objective\.temperature is 0\.0"),
    ],
)
def test_impossible_settings_of_whole_texts_are_refused(make, words: str):
    with pytest.raises(ValueError, match=words):
        make()
