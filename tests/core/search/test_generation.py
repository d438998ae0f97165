"""Laws and hand-worked cases of generated text: where it stops, how it streams, which settings apply."""

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, processors

from flaxformer_lite.core.search.generation import (
    DEFAULT_NEW_TOKENS,
    GrowingText,
    TextStream,
    decode_after,
    encode_prompt,
    generation_settings,
    truncate_at_stop,
)
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling
from flaxformer_lite.core.text import Bytes, Tokenizer
from flaxformer_lite.core.text.special_ids import BOS
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import SentencePiece
from tests.support.tokenizers import NAMES, TEXT, bytes_joined, gapped, word_pieces

BYTES = Bytes().train([], 260)


def llama_bytes() -> JsonTokenizer:
    """Llama's kind: one invalid byte makes all bytes of a run invalid; the first space of a text is dropped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁b", "b"]
    found = tokenizers.Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    found.normalizer = normalizers.Replace(" ", "▁")
    rest = [decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    found.decoder = decoders.Sequence([decoders.Replace("▁", " "), *rest])
    return JsonTokenizer.of(found.to_str(), NAMES)


def tokenizers_of_all_kinds() -> dict[str, Tokenizer]:
    pieces = {
        f"{kind}, bytes {fallback}": SentencePiece(model_type=kind, byte_fallback=fallback).train(TEXT, 307)
        for kind, fallback in (("unigram", False), ("bpe", True))
    }
    json = {"byte-level": bytes_joined(), "word pieces": word_pieces()}
    named = {name: JsonTokenizer.of(found.to_str(), NAMES) for name, found in json.items()}
    return {"bytes": BYTES, "gaps": gapped(), "llama": llama_bytes(), **named, **pieces}


KINDS = tokenizers_of_all_kinds()


def test_text_stops_before_the_first_stop_string():
    """Oracle: worked by hand."""
    assert truncate_at_stop("one. two; three", ["; ", ". "]) == "one"
    assert (
        truncate_at_stop("one", ["one", "ne"]) == ""
        and truncate_at_stop("one", []) == "one"
        and truncate_at_stop("one", ["x"]) == "one"
    )


@pytest.mark.parametrize("stop", [(), ("字!",), ("ab",), ("b≠", "≠≠≠"), ("nowhere", "\n\n")], ids=str)
def test_streamed_parts_make_the_text(stop):
    """Law: however the bytes arrive, the parts join to the text before the stop string, and no character is split."""
    text = "über ≠ 漢字, ab≠ 漢字!\n\nand so on ≠≠"
    ids, generator = BYTES.encode(text), np.random.default_rng(0)
    for _ in range(20):
        cuts = np.sort(generator.integers(0, len(ids) + 1, 9))
        stream, parts = TextStream(BYTES, [BOS], stop), []
        for tokens in np.split(ids, cuts):
            parts.append(stream.add(tokens.tolist()))
            if stream.stopped:
                break
        else:
            parts.append(stream.finish())
        assert "".join(parts) == truncate_at_stop(text, stop) and not any("\ufffd" in part for part in parts)


def test_streams_by_hand():
    """Oracle: worked by hand: bytes of a character and the beginning of a stop string are held back until they are decided."""
    stream = TextStream(BYTES, [BOS], ["stop"])
    parts = [stream.add(BYTES.encode(part)) for part in ("as", "to", "st", "o", "p and on")]
    assert parts == ["a", "", "sto", "", ""] and stream.stopped
    stream = TextStream(BYTES, [BOS], [])
    assert [stream.add([i]) for i in BYTES.encode("é!")] == ["", "é", "!"]
    broken = TextStream(BYTES, [BOS], [])
    assert broken.add(BYTES.encode("aé")[:-1]) == "a" and broken.finish() == "\ufffd"


@pytest.mark.parametrize("cut", range(5))
def test_the_stop_string_that_is_complete_first_ends_a_text(cut: int):
    """Oracle: worked by hand: "a" is complete one token before "bac", which begins before it, however the tokens arrive."""
    stream, ids = TextStream(BYTES, [BOS], ["bac", "a"]), BYTES.encode("bac!")
    parts = [stream.add(part) for part in (ids[:cut], ids[cut:]) if not stream.stopped]
    assert "".join(parts) == "b" and stream.text() == "ba" and stream.num_tokens == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_growing_text_is_the_text_of_all_tokens(kind):
    """Law: after any number of tokens, of texts or at random, the text is that of decoding them all at once."""
    tokenizer, generator = KINDS[kind], np.random.default_rng(8)
    words = "   ".join(TEXT[:9]) + " 漢字漢字🙂🙂  é\n\n" * 9
    most = 9 if kind in ("gaps", "word pieces") else tokenizer.vocab_size
    for number in range(12):
        made = generator.integers(0, most + 2, 300).tolist()
        read = tokenizer.encode(words)[number:] or made
        invisible = [tokenizer.pad_id] * 80
        ids = [read, made, read[:90] + invisible + read[90:150] + made][number % 3][:400]
        start = [0, 1, 7, 150][number % 4]
        prompt = [token for token in ids[:start] if tokenizer.has_piece(token)]
        growing, done = GrowingText(tokenizer, prompt), start
        while done < len(ids):
            count = int(generator.integers(0, 6))
            text, done = growing.add(ids[done : done + count]), done + count
            assert text == decode_after(tokenizer, prompt, ids[start:done])


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"gaps"}))
def test_a_stream_decodes_each_token_a_few_times(kind, monkeypatch):
    """Law: the tokens that are decoded for a text grow as the text does, not as its square, whatever the prompt."""
    tokenizer, decoded = KINDS[kind], []
    decode = tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids: decoded.append(len(ids)) or decode(ids))
    ids = tokenizer.encode(" ".join(TEXT) + "ab a b " * 99)
    ids = (ids * (3000 // len(ids) + 1))[:3000]
    stream = TextStream(tokenizer, ids[:1000], ["nowhere"])
    parts = [stream.add(ids[start : start + 4]) for start in range(1000, 3000, 4)]
    assert sum(decoded) < 2000 / 4 * 160
    assert "".join([*parts, stream.finish()]) == decode_after(tokenizer, ids[:1000], ids[1000:])


def test_decode_after_a_prompt_keeps_its_space():
    """Oracle: SentencePiece drops the space at the start of a text, not after a prompt; ids outside the vocabulary are skipped."""
    tokenizer = SentencePiece(model_type="unigram").train(["hello world", "world of words", "a word"] * 9, 17)
    ids = tokenizer.encode("hello world")
    cut = next(n for n in range(1, len(ids)) if tokenizer.decode(ids[:n]) == "hello")
    assert decode_after(tokenizer, [BOS, *ids[:cut]], [*ids[cut:], 17, 999]) == " world"
    assert decode_after(tokenizer, [BOS], ids) == "hello world"


def test_prompts_begin_as_texts_do():
    """Oracle: BOS and the text without an end; a tokenizer that adds nothing and finds nothing leaves BOS."""
    assert encode_prompt(BYTES, "a", 7) == [BOS, *BYTES.encode("a")]
    assert encode_prompt(BYTES, "", 7) == [BOS]
    bare = Bytes().train([], 260)
    bare.bos_id = bare.eos_id = None
    assert encode_prompt(bare, "a", 7) == BYTES.encode("a") and encode_prompt(bare, "", 7) == [7]
    assert encode_prompt(bare, "a", None) == BYTES.encode("a")
    with pytest.raises(ValueError, match=r"a prompt is empty, and decode\.bos_id is None: give it text, or set"):
        encode_prompt(bare, "", None)


def test_settings_by_name():
    """Oracle: worked by hand: a setting of Sampling turns sampling on, a beam turns it off, and the length always has a limit."""
    config = DecodeConfig()
    assert generation_settings(config, {}) == DecodeConfig(max_new_tokens=DEFAULT_NEW_TOKENS)
    assert generation_settings(config, {"top_k": 3, "max_new_tokens": 5}) == DecodeConfig(
        sampling=Sampling(top_k=3), max_new_tokens=5
    )
    by_prompt = DecodeConfig(max_length_ratio=0.5, max_length_extra=3)
    assert generation_settings(by_prompt, {}) == by_prompt
    assert generation_settings(DecodeConfig(max_new_tokens=9), {"max_length_extra": 10}) == DecodeConfig()
    drawing = DecodeConfig(sampling=Sampling(min_p=0.1), max_new_tokens=9)
    assert generation_settings(drawing, {"temperature": 0.5}).sampling == Sampling(min_p=0.1, temperature=0.5)
    assert generation_settings(drawing, {"beam_size": 4}) == DecodeConfig(beam_size=4, max_new_tokens=9)
    assert generation_settings(DecodeConfig(beam_size=4), {"top_p": 0.5}).beam_size == 1
    neutral = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert generation_settings(DecodeConfig(beam_size=4), neutral) == generation_settings(DecodeConfig(beam_size=4), {})
    assert generation_settings(config, neutral | {"temperature": 0.5}).sampling == Sampling(temperature=0.5)
    assert generation_settings(drawing, neutral).sampling == Sampling()
    for wrong, near in (("temprature", "temperature"), ("beamsize", "beam_size")):
        with pytest.raises(ValueError, match=f"^{wrong} is no setting of decoding: .*; perhaps you meant {near}$"):
            generation_settings(config, {wrong: 2})
    with pytest.raises(ValueError, match=r"decode.beam_size is 2 but decode.sampling is set"):
        generation_settings(config, {"beam_size": 2, "top_p": 0.5})


def test_only_what_the_template_appends_is_left_out_of_a_prompt():
    """Hand-worked: ids 0, 1 and 2 are <s>, <pad> and </s>; the user's own end stays, whatever the template says."""
    made = bytes_joined()
    for template, before in (("<s> $A </s>", [0]), ("$A </s>", []), ("<s> $A", [0]), ("$A", [])):
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 0), ("</s>", 2)])
        tokenizer = JsonTokenizer.of(made.to_str(), NAMES | {"bos_token": "</s>", "cls_token": "</s>"})
        ids = tokenizer.encode("a")
        assert encode_prompt(tokenizer, "a</s>", 7) == [*before, *ids, 2], template
        assert encode_prompt(tokenizer, "</s>", 7) == [*before, 2] and encode_prompt(tokenizer, "a", 7) == [
            *before,
            *ids,
        ]
        assert encode_prompt(tokenizer, "", 7) == (before or [7])


def test_a_text_has_the_pieces_after_a_gap_of_the_ids():
    """Hand-worked: "b" is 0, the padding where none is named, and "c" is 7; 5 and 90 have no piece."""
    tokenizer = gapped()
    assert decode_after(tokenizer, [0], [7, 5, 90, 7]) == " c c" and tokenizer.decode([0, 7]) == "b c"
    assert decode_after(tokenizer, [0], [5]) == ""
