"""Laws of translation: the decoder's answers as text, in the order of the sources."""

import pytest

from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.inference.decoder import Decoder, ScoredText
from flaxformer_lite.inference.translation import translate
from flaxformer_lite.text.characters import CharacterTokenizer
from flaxformer_lite.text.special_ids import EOS
from flaxformer_lite.text.tokenizer import Tokenizers
from tests.support.reference_search import ALONE, SMALL, model_of

LETTERS = CharacterTokenizer("abcdefg")
TOKENIZERS = Tokenizers(LETTERS, LETTERS)


def test_translations_are_the_decoders_answers_as_text():
    """Law: each source gets EOS and is answered as by the decoder alone; an empty source has one empty translation."""
    model, variables = model_of(SMALL)
    decoder = Decoder(model, DecodeConfig(beam_size=2, num_hypotheses=2, max_new_tokens=5))
    sources, reported = [[5, 7], [], [9, 4, 4]], []
    found = translate(
        decoder, variables["params"], sources, TOKENIZERS, lambda done, total: reported.append((done, total))
    )
    answers = decoder.generate(variables, [[*source, EOS] for source in sources if source])
    texts = [[ScoredText(LETTERS.decode(h.tokens), h.score) for h in answer] for answer in answers]
    assert found == [texts[0], [ScoredText("", 0.0)], texts[1]] and reported == [(2, 2)]


def test_a_decoder_alone_translates_nothing():
    model, variables = model_of(ALONE)
    with pytest.raises(ValueError, match=r"model.num_encoder_layers is 0\), so it cannot translate: use generate"):
        translate(Decoder(model, DecodeConfig()), variables["params"], [[4]], TOKENIZERS, lambda done, total: None)
