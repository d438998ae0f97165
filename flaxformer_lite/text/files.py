"""Text files, plain or gzipped, at paths or URLs, and streams of lines. Every error names the file and the line."""

import codecs
import glob
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from flaxformer_lite.console import suggest
from flaxformer_lite.remote_files import is_url, matching_urls, read_url


def matching_files(path: str) -> list[str]:
    """Returns the files that match a pattern such as `books/**/*.txt`, sorted by name; a plain path or URL as it is.

    Raises: ValueError if no file matches.
    """
    if is_url(path):
        return matching_urls(path)
    if Path(path).exists() or not glob.has_magic(path):
        return [path]
    paths = sorted(found for found in glob.glob(path, recursive=True) if Path(found).is_file())
    if not paths:
        raise ValueError(f"{path}: no file matches this pattern (searched from {Path.cwd()})")
    return paths


def read_lines(path: str | Path) -> list[str]:
    """Returns the lines of a UTF-8 text file, plain or gzipped (by content, not by name); none for an empty file.

    A line ends with "\\n" or "\\r\\n" and nothing else, so U+2028 or a form feed stays inside it. The last line may lack its
    end. A byte order mark at the start is dropped. Empty lines count.

    Raises: ValueError for a file that is missing, a folder, unreadable, damaged gzip, or not UTF-8 (with the line number).
    """
    return _lines(read_bytes(path), str(path))


def stream_lines(stream: io.BufferedIOBase, name: str) -> Iterator[list[str]]:
    """Yields the lines of a stream in chunks: the lines that have arrived, at most 256 KiB at once, without waiting for more.

    A program that writes a line and waits for the answer gets it, and a long text still comes in large chunks. Lines are
    those of `read_lines`; `name` stands for the stream in messages.

    Raises: ValueError if a chunk is not UTF-8 (with the line number).
    """
    count, rest = 0, b""
    while chunk := stream.read1(2**18):
        whole, end, rest = (rest + chunk).rpartition(b"\n")
        if end:
            lines = _lines(whole + end, name, count)
            yield lines
            count += len(lines)
    if rest:
        yield _lines(rest, name, count)


def _lines(content: bytes, name: str, before: int = 0) -> list[str]:
    """Returns the lines of the bytes, which follow `before` other lines. Raises: ValueError if they are not UTF-8."""
    if before == 0:
        content = content.removeprefix(codecs.BOM_UTF8)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = before + content.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{content[error.start]:02x}"
        raise ValueError(f"{name}:{line}: not UTF-8 ({byte}); convert it, for example with iconv") from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def read_bytes(path: str | Path) -> bytes:
    """Returns the bytes of a file, at a path or URL, decompressed if they are gzip. Raises: ValueError."""
    content = read_url(str(path)) if is_url(path) else _read_file(Path(path))
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file ({error}); download or create it again") from error


def _read_file(path: Path) -> bytes:
    """Returns the bytes of a local file. Raises: ValueError."""
    if path.is_dir():
        raise ValueError(f"{path}: a folder, not a file; name a file in it")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file{_perhaps(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise ValueError(f"{path}: cannot be read ({error})") from error


def _perhaps(path: Path) -> str:
    """Returns a hint after "no such file": similar names in the folder, or that the folder is missing too."""
    if not path.parent.is_dir():
        return f", nor a folder {path.parent} (looked for from {Path.cwd()})"
    names = [file.name for file in path.parent.iterdir()]
    return suggest(path.name, names, 3) or f" in {path.parent.absolute()}"
