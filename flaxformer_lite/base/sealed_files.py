"""Digests of texts and files, and JSON files that hold their own, so that every change of their content is noticed.

A sealed file is `{"content": ..., "sha256": hex}`; the hash is that of the content as JSON with sorted keys.
"""

import hashlib
import json
from pathlib import Path
from types import UnionType
from typing import Any

from flaxformer_lite.base.atomic_files import write_chunks


def text_digest(text: str) -> str:
    """Returns the SHA-256 of a text, as 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of the content of a file, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DamageError(ValueError):
    """A file that is missing or not as it was written; the message says why."""


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the document that holds `content` and its hash."""
    text = json.dumps(content, sort_keys=True)
    return {"content": content, "sha256": text_digest(text)}


def sealed_file(content: dict[str, object]) -> bytes:
    """Returns the bytes of the sealed file of `content`."""
    return (json.dumps(sealed(content), indent=2) + "\n").encode()


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Writes a sealed file completely, or not at all."""
    write_chunks(path, [sealed_file(content)])


def read_sealed(path: Path, **form: type | UnionType) -> dict[str, Any]:
    """Returns the content of a sealed file. Raises: OSError; DamageError as `unsealed`."""
    return unsealed(path.read_bytes(), path.name, **form)


def unsealed(file: bytes, name: str, **form: type | UnionType) -> dict[str, Any]:
    """Returns the content in the bytes of a sealed file. Raises: DamageError if they are not as they were written.

    form: fields that the content must have, with their types.
    """
    try:
        document = json.loads(file)
        digest = document.pop("sha256")
        # Older token stores have the hash among the content.
        content: dict[str, Any] = document.pop("content", document)
        is_whole = isinstance(content, dict) and sealed(content)["sha256"] == digest
        if is_whole and all(isinstance(content.get(name), kind) for name, kind in form.items()):
            return content
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass  # not JSON, or not of this form
    raise DamageError(f"{name} is garbled")
