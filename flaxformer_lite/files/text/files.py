"""Text files, plain or compressed, at paths or URLs, and streams of lines. Every error names the file and the line."""

import bz2
import codecs
import contextlib
import glob
import gzip
import io
import itertools
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flaxformer_lite.base.remote_files import is_url, matching_urls, open_filesystem, reading
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.base.suggest import suggest

LONGEST_LINE = 2**28
"""In bytes: the longest text that is held as one."""
ReadProgress = Callable[[float], None]
"""Called now and then with the fraction of the input that has been read."""
BadLine = Callable[[int, str], None]
"""Called with the number of a line that is not UTF-8, counted from 1, and the reason; the line then counts as an empty one."""


def most_unpacked(packed: int) -> int:
    """Returns how many bytes a compressed file of `packed` bytes may hold; more is a file made to fill the memory."""
    return max(2**28, 100 * packed)


def ignore_progress(fraction: float) -> None:
    """Does nothing."""


def matching_files(path: str) -> list[str]:
    """Returns the files that match a pattern such as `books/**/*.txt`, sorted by name; a plain path or URL as it is.

    Raises: ValueError if no file matches.
    """
    if is_url(path):
        return matching_urls(path)
    if Path(path).exists() or not glob.has_magic(path):
        return [path]
    paths = sorted(file for file in glob.glob(path, recursive=True) if Path(file).is_file())
    if not paths:
        raise ValueError(f"{path}: no file matches this pattern (searched from {Path.cwd()})")
    return paths


def file_versions(path: str) -> list[str]:
    """Returns for each matching file its name, size and time of change, as text: another text if the file has changed."""

    def version(file: str) -> str:
        if is_url(file):
            filesystem, name = open_filesystem(file)
            with reading(file):
                return f"{file} {filesystem.checksum(name)}"
        check_file(file)
        status = os.stat(file)
        return f"{file} {status.st_size} {status.st_mtime_ns}"

    return [version(file) for file in matching_files(path)]


def line_chunks(
    path: str | Path, progress: ReadProgress = ignore_progress, bad_line: BadLine | None = None
) -> Iterator[list[str]]:
    """Yields the lines of a UTF-8 text file in chunks; gzip, bzip2, xz and zstd are known by content, not by name.

    A line ends with "\\n" or "\\r\\n" and nothing else, so U+2028 or a form feed stays inside it; with "\\r" too in a file whose
    first MiB has "\\r" and no "\\n". The last line may lack its end. Byte order marks at the start of a line are dropped, as
    joined files have them inside. Empty lines count.

    Raises: ValueError for a file that is missing, a folder, unreadable, damaged, of UTF-16 or UTF-32, or, without `bad_line`, not
        UTF-8 (with the line number).
    """
    check_file(path)
    damage: tuple[type[Exception], ...] = ()
    kind, unpacked = "", 0
    with contextlib.ExitStack() as stack:
        try:
            raw, size = _open(path, stack)
            stream, kind, damage = _decompressed(raw, str(path))
            for lines in stream_lines(stream, str(path), bad_line):
                unpacked += sum(map(len, lines)) + len(lines)
                if kind:
                    most = most_unpacked(raw.tell())
                    if unpacked > most:
                        raise ValueError(
                            f"{path}: more than {most:,} bytes in the first {raw.tell():,} of this {kind} file: unpack it"
                        )
                yield lines
                progress(raw.tell() / size if size else 1.0)
        except damage as error:
            raise ValueError(f"{path}: damaged {kind} file ({error}); download or create it again") from error
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error})") from error


def _open(path: str | Path, stack: contextlib.ExitStack) -> tuple[io.BufferedReader, int]:
    """Returns an open file, which the stack closes, and its size."""
    if not is_url(path):
        return stack.enter_context(open(path, "rb")), os.stat(path).st_size
    filesystem, name = open_filesystem(str(path))
    with reading(str(path)):
        size = int(filesystem.size(name) or 0)
        file = stack.enter_context(filesystem.open(name, "rb"))
    stack.enter_context(reading(str(path)))
    return io.BufferedReader(file), size


def _decompressed(raw: io.BufferedReader, path: str) -> tuple[Any, str, tuple[type[Exception], ...]]:
    """Returns the stream of the file's text, its compression, and the errors that mean damage."""
    start = raw.peek(16)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw), "gzip", (OSError, EOFError, zlib.error)
    if re.match(rb"BZh[1-9]1AY&SY", start):
        return bz2.BZ2File(raw), "bzip2", (OSError, EOFError)
    if start.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(raw), "xz", (lzma.LZMAError, EOFError)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            import zstandard
        except ImportError:
            raise ValueError(
                f'{path}: a zstd file needs the zstandard package: pip install "flaxformer_lite[zstd]"'
            ) from None
        return _ZstdStream(raw, zstandard.ZstdDecompressor()), "zstd", (zstandard.ZstdError, EOFError)
    return raw, "", ()


class _ZstdStream:
    """The text of a zstd file. The package's own reader takes a file that was cut for a whole one."""

    def __init__(self, raw: io.BufferedReader, decompressor: Any) -> None:
        self._raw, self._decompressor = raw, decompressor
        self._frame: Any = None

    def read1(self, size: int) -> bytes:
        packed = text = b""
        # A block of 4 bytes holds up to 128 KiB of text, so few are decompressed at a time.
        while packed := packed or self._raw.read1(min(size, 2**10)):
            if self._frame is None or self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            text += self._frame.decompress(packed)
            packed = self._frame.unused_data
            if text and not packed:
                return text
        if self._frame is not None and not self._frame.eof:
            raise EOFError("it ends inside a frame")
        return b""


def stream_lines(
    stream: io.BufferedIOBase | _ZstdStream, name: str, bad_line: BadLine | None = None
) -> Iterator[list[str]]:
    """Yields the lines of a stream in chunks: the lines that have arrived, at most 256 KiB at once, without waiting for more.

    A program that writes a line and waits for the answer gets it, and a long text still comes in large chunks. Lines are
    those of `line_chunks`; `name` stands for the stream in messages.

    Raises: ValueError if it is UTF-16 or UTF-32, or without `bad_line` if a chunk is not UTF-8 (with the line number).
    """
    count, parts, held = 0, [b""], 0
    for chunk in with_newlines(iter(lambda: stream.read1(2**18), b""), name):
        held += len(chunk)
        if held > LONGEST_LINE:
            raise Mistake(f"a line of more than {LONGEST_LINE:,} bytes: split it", name, count + 1)
        whole, end, rest = chunk.rpartition(b"\n")
        if end:
            lines = _lines(b"".join([*parts, whole, end]), name, count, bad_line)
            yield lines
            count += len(lines)
            parts = []
            held = len(rest)
        parts.append(rest)
    if any(parts):
        yield _lines(b"".join(parts), name, count, bad_line)


def with_newlines(chunks: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yields the chunks, with newlines in place of the carriage returns if only these end the lines, as on Macs before 2001.

    Raises: ValueError if the first of them are UTF-16 or UTF-32.
    """
    start = b""
    for chunk in chunks:
        start += chunk
        if b"\n" in chunk or len(start) >= 2**20:
            break
    check_encoding(start[: 2**12], name)
    if b"\n" in start or b"\r" not in start[:-1]:
        yield start
        yield from chunks
        return
    before = b""
    for chunk in itertools.chain([start], chunks):
        text = before + chunk
        before = text[len(text.removesuffix(b"\r")) :]
        yield text.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    yield before.replace(b"\r", b"\n")


WIDE = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Encodings with two or four bytes a character, by their byte order marks: the longer marks first."""


def check_encoding(start: bytes, name: str) -> None:
    """Raises: ValueError if a text begins as UTF-16 or UTF-32 do: with their byte order mark, or with many bytes that are 0."""
    wide = next((encoding for mark, encoding in WIDE.items() if start.startswith(mark)), None)
    reason = f"it begins with the byte order mark of {wide}"
    if wide is None:
        places = [start[place::4].count(0) for place in range(4)]
        zeros = sum(places)
        most = 0.9 * len(start) / 4
        if zeros < max(2, len(start) / 64):
            return
        if min(places[2:]) > most or min(places[:2]) > most:
            wide = "UTF-32LE" if places[3] > most else "UTF-32BE"
        elif max(places[0] + places[2], places[1] + places[3]) > 0.9 * zeros:
            wide = "UTF-16LE" if places[1] + places[3] > zeros / 2 else "UTF-16BE"
        else:
            return
        reason = f"{zeros:,} of its first {len(start):,} bytes are 0, as in {wide}"
    raise ValueError(
        f"{name}: {reason}, but a text must be UTF-8: convert it, for example with iconv -f {wide} -t UTF-8"
    )


def _lines(content: bytes, name: str, before: int, bad_line: BadLine | None) -> list[str]:
    """Returns the lines of the bytes, which follow `before` other lines. Raises: ValueError as `stream_lines`."""
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        lines = []
        for number, line in enumerate(content.split(b"\n"), before + 1):
            try:
                lines.append(line.decode())
            except UnicodeDecodeError as error:
                zeros = " and zeros, as in UTF-16" if b"\0" in line else ""
                reason = f"not UTF-8 (byte 0x{line[error.start]:02x}{zeros}); convert it, for example with iconv"
                if bad_line is None:
                    raise Mistake(reason, name, number) from None
                bad_line(number, reason)
                lines.append("")
    if codecs.BOM_UTF8 in content:
        lines = [line.lstrip("\ufeff") for line in lines]
    lines = [line.removesuffix("\r") for line in lines]
    return lines[:-1] if lines[-1] == "" else lines


def check_file(path: str | Path) -> None:
    """Raises: ValueError unless the path is a file, with a hint; a URL is not looked at."""
    if is_url(path):
        return
    path = Path(path)
    try:
        if path.is_dir():
            raise ValueError(f"{path}: a folder, not a file; name a file in it")
        path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ValueError(
                f"{path}: no such file, nor a folder {path.parent} (looked for from {Path.cwd()})"
            ) from None
        similar = suggest(path.name, [file.name for file in path.parent.iterdir()], 3)
        raise ValueError(f"{path}: no such file{similar or f' in {path.parent.absolute()}'}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error


def in_utf8(text: str, name: str) -> str:
    """Returns a text. Raises: ValueError, by its `name`, if UTF-8 cannot write it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half a surrogate pair: correct the data") from None
    return text
