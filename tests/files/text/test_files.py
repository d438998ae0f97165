"""Oracles: files written by hand, byte for byte, with the lines or the message they must give."""

import bz2
import gzip
import io
import lzma
from pathlib import Path

import pytest

from flaxformer_lite.files.text.files import line_chunks, stream_lines, with_newlines
from tests.support import needs
from tests.support.files import file


def read_lines(path: str | Path) -> list[str]:
    """All lines of a file."""
    return [line for lines in line_chunks(path) for line in lines]


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    odd = "a\u2028b\x0cc\x85d\x1ce"
    path = file(tmp_path, "x", f"\ufeff{odd}\r\n\r\ntwo\rtwo\r\r\n  \nlast")
    assert read_lines(path) == [odd, "", "two\rtwo\r", "  ", "last"]
    assert read_lines(file(tmp_path, "y", "one\n\n")) == ["one", ""]
    assert read_lines(file(tmp_path, "z", "")) == []


@pytest.mark.parametrize("packed", [False, True])
def test_carriage_returns_alone_end_lines_too(tmp_path: Path, packed: bool) -> None:
    """As Excel for Mac writes CSV. Where newlines come first, a carriage return is text; a joined file may have both."""
    text = "\ufeffeins\rzwei\r\rHüte\r"
    assert read_lines(file(tmp_path, "x", text, packed)) == ["eins", "zwei", "", "Hüte"]
    assert read_lines(file(tmp_path, "y", "ab\r" * 2**19 + "c\r\nd\n", packed)) == ["ab"] * 2**19 + ["c", "d"]
    assert read_lines(file(tmp_path, "v", "one\r")) == ["one"] == read_lines(file(tmp_path, "w", "one\r\n"))
    assert b"".join(with_newlines(iter([b"a\r" * 2**19, b"b\r", b"\nc\r", b"\r"]), "x"))[2**20 :] == b"b\nc\n\n"
    assert arriving(b"a\r", b"b\r", b"\n", b"c\r", b"d") == [["a\rb"], ["c\rd"]]
    assert arriving(b"a\r", b"b") == [["a"], ["b"]] and arriving(b"a\r\r") == [["a"], [""]]


WORDS = "Straße und Häuser\nзимой и летом, два\r\n犬が、好きです\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16le", "utf-16be", "utf-32", "utf-32le", "utf-32be"])
@pytest.mark.parametrize("text", [WORDS, "a plain line\r", "Все люди рождаются свободными и равными.\n"])
def test_wide_encodings_are_named(tmp_path: Path, encoding: str, text: str) -> None:
    name = encoding.upper()
    for packed in (False, True):
        path = file(tmp_path, "x", text.encode(encoding), packed)
        with pytest.raises(
            ValueError, match=rf"^{path}: .* {name}, but a text must be UTF-8: .*iconv -f {name} -t UTF-8$"
        ):
            read_lines(path)
    with pytest.raises(ValueError, match=rf"^stdin: .* {name}, but"):
        list(stream_lines(io.BytesIO(text.encode(encoding)), "stdin", lambda number, why: None))


def test_few_zeros_are_text(tmp_path: Path) -> None:
    assert read_lines(file(tmp_path, "x", "a\0b\n" + "text\n" * 99)) == ["a\0b"] + ["text"] * 99
    with pytest.raises(ValueError, match=r":100: not UTF-8 \(byte 0x.. and zeros, as in UTF-16\)"):
        read_lines(file(tmp_path, "z", b"text\n" * 99 + "犬一一\n".encode("utf-16-le")))


def test_byte_order_marks_of_joined_files_are_no_text(tmp_path: Path) -> None:
    """`cat a b` of files that begin with U+FEFF, an empty one among them. Inside a line it is a character."""
    joined = file(tmp_path, "x", "\ufeffone\n\ufeff\ufefftwo\ufeff\r\n\ufeff\nthree\n\ufeff")
    assert read_lines(joined) == ["one", "two\ufeff", "", "three"]


@pytest.mark.parametrize("kind", ["gzip", "bzip2", "xz", "zstd"])
def test_compressions_are_known_by_their_content(tmp_path: Path, kind: str) -> None:
    """Several parts after each other are one file; a cut one is named; text that begins like bzip2 is text."""
    if kind == "zstd":
        compress = pytest.importorskip("zstandard", reason=needs.TEST_ALL).ZstdCompressor().compress
    else:
        compress = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}[kind]
    parts = compress("Hüte\n".encode() * 9) + compress(b"end")
    assert read_lines(file(tmp_path, "x", parts)) == ["Hüte"] * 9 + ["end"]
    assert read_lines(file(tmp_path, "text.gz", "BZh9 is a sign\n")) == ["BZh9 is a sign"]
    with pytest.raises(ValueError, match=rf"^{tmp_path}/cut: damaged {kind} file"):
        read_lines(file(tmp_path, "cut", parts[:-2]))


def test_a_zstd_file_that_unfolds_is_read_in_pieces(tmp_path: Path) -> None:
    """A few KB that hold 64 MB: 1,024 lines, of which the first piece has less than a quarter."""
    zstandard = pytest.importorskip("zstandard", reason=needs.TEST_ALL)
    path = file(tmp_path, "x", zstandard.ZstdCompressor().compress((b"x" * (2**16 - 1) + b"\n") * 2**10))
    assert len(next(line_chunks(path))) < 2**8


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"a sentence\nand another one\n"))
    beginning = packed[:5]
    packed[-6] ^= 1  # in the checksum
    for content in (beginning, packed):
        with pytest.raises(ValueError, match=r"x\.gz: damaged gzip file"):
            read_lines(file(tmp_path, "x.gz", bytes(content)))


@pytest.mark.parametrize("packed", [False, True])
def test_bytes_that_are_not_utf8_are_located(tmp_path: Path, packed: bool) -> None:
    path = file(tmp_path, "latin1", b"\xef\xbb\xbfgood\ngood\nGr\xfc\xdfe\nbad\xff\n", packed)
    with pytest.raises(ValueError, match=rf"^{path}:3: not UTF-8 \(byte 0xfc\)"):
        read_lines(path)


class Arriving(io.RawIOBase):
    """A stream that has some bytes at a time."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        chunk = self.chunks.pop(0) if self.chunks else b""
        buffer[: len(chunk)] = chunk
        return len(chunk)


def arriving(*chunks: bytes) -> list[list[str]]:
    return list(stream_lines(io.BufferedReader(Arriving(list(chunks))), "stdin"))


def test_lines_of_a_stream_come_as_they_arrive() -> None:
    """Law: a block is what has arrived; a line, and a character in it, may arrive in parts."""
    hats = "zwei Hüte\n".encode()
    assert arriving(b"one\ntwo\n", hats[:7], hats[7:], b"\n", b"three\r\n\nfo", b"ur") == [
        ["one", "two"],
        ["zwei Hüte"],
        [""],
        ["three", ""],
        ["four"],
    ]
    assert arriving() == []
    assert arriving(b"\xef", b"\xbb\xbfa\n", b"\xef\xbb\xbfb\n") == [["a"], ["b"]]


def test_lines_of_a_stream_that_are_not_utf8_are_located_after_those_before() -> None:
    stream = stream_lines(io.BufferedReader(Arriving([b"a\n\nb\n", b"c\n\xff\n"])), "stdin")
    assert next(stream) == ["a", "", "b"]
    with pytest.raises(ValueError, match=r"^stdin:5: not UTF-8 \(byte 0xff\)"):
        next(stream)


def test_missing_files_come_with_a_hint(tmp_path: Path) -> None:
    file(tmp_path, "train.en.gz", "")
    with pytest.raises(ValueError, match=r"train\.en: no such file; perhaps you meant train\.en\.gz$"):
        read_lines(tmp_path / "train.en")
    with pytest.raises(ValueError, match=rf"zzz: no such file in {tmp_path}$"):
        read_lines(tmp_path / "zzz")
    with pytest.raises(ValueError, match="no such file, nor a folder"):
        read_lines(tmp_path / "nowhere" / "train.en")
    with pytest.raises(ValueError, match="a folder, not a file"):
        read_lines(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_lines(str(tmp_path / "train.en.gz" / "below-a-file"))
    with pytest.raises(ValueError):
        read_lines("null\0character")


def test_a_file_that_fills_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many lines or one; a small file may unpack to any ratio."""
    lines = file(tmp_path, "lines", "x\n" * 2**20, packed=True)
    one = file(tmp_path, "one", "x" * 2**21, packed=True)
    assert len(read_lines(lines)) == 2**20 and len(read_lines(one)) == 1
    monkeypatch.setattr("flaxformer_lite.files.text.files.most_unpacked", lambda packed: 100 * packed)
    monkeypatch.setattr("flaxformer_lite.files.text.files.LONGEST_LINE", 2**20)
    with pytest.raises(ValueError, match=r"lines: more than \d.* bytes in the first \d.* of this gzip file: unpack it"):
        read_lines(lines)
    with pytest.raises(ValueError, match=r"one:1: a line of more than 1,048,576 bytes: split it"):
        read_lines(one)
