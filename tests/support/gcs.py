"""Google Cloud Storage on this machine, as TensorStore asks it: objects with generations, preconditions, and faults on demand.

Emulators that ignore `ifGenerationMatch` let both of two claims win; a test on them would prove nothing.
"""

import contextlib
import functools
import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

PAGE = 100
"""Names in one answer of a listing."""


class Storage(ThreadingHTTPServer):
    """The server. Objects are kept by BUCKET/NAME, as their content and generation; a bucket needs no creation."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.generation = 0
        self.changing = threading.Lock()
        self.empty()

    def empty(self) -> None:
        """Deletes all objects and faults."""
        self.objects = dict[str, tuple[bytes, int]]()
        self.counts = Counter[str]()
        """Requests by their kinds: GET, PUT, LIST, DELETE, and FAULT for each that was not answered."""
        self.busy = 0
        """Requests that are still answered by 503."""
        self.away_until = 0.0
        """Time of `time.monotonic` until which no request is answered."""
        self.lost_answers = 0
        """Writes that are still made without an answer."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Does nothing: a client that was killed has closed its connection."""


class Handler(BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", -1  # headers and content in one packet
    server: Storage

    def do_GET(self) -> None:
        name, asked, _ = self.request_of()
        if self.has_fault():
            return None
        if not name.partition("/")[2]:
            return self.list(name, asked)
        self.server.counts["GET"] += 1
        content, generation = self.server.objects.get(name, (b"", 0))
        if generation == 0 or not self.holds(asked, generation):
            return self.answer(404 if generation == 0 else 304 if "ifGenerationNotMatch" in asked else 412)
        part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if part is None:
            return self.answer(200, content, generation)
        first = int(part[1]) if part[1] else max(0, len(content) - int(part[2]))
        end = int(part[2]) + 1 if part[1] and part[2] else len(content)
        if first >= len(content):
            return self.answer(416)
        piece = content[first:end]
        return self.answer(206, piece, generation, f"bytes {first}-{first + len(piece) - 1}/{len(content)}")

    def do_POST(self) -> None:
        bucket, asked, content = self.request_of()
        if self.has_fault():
            return None
        self.server.counts["PUT"] += 1
        name = bucket + asked["name"]
        with self.server.changing:
            if not self.holds(asked, self.server.objects.get(name, (b"", 0))[1]):
                return self.answer(412)
            self.server.generation += 1
            generation = self.server.generation
            self.server.objects[name] = content, generation
            is_lost = self.server.lost_answers > 0
            self.server.lost_answers -= is_lost
        if is_lost:
            return self.hang_up()
        return self.answer(200, json.dumps({"name": asked["name"], "generation": str(generation)}).encode())

    def do_DELETE(self) -> None:
        name, asked, _ = self.request_of()
        if self.has_fault():
            return None
        self.server.counts["DELETE"] += 1
        with self.server.changing:
            generation = self.server.objects.get(name, (b"", 0))[1]
            if generation and self.holds(asked, generation):
                del self.server.objects[name]
                return self.answer(204)
        return self.answer(412 if generation else 404)

    def list(self, bucket: str, asked: dict[str, str]) -> None:
        self.server.counts["LIST"] += 1
        first = max(asked.get("prefix", ""), asked.get("startOffset", ""), asked.get("pageToken", ""))
        names = sorted(name.removeprefix(bucket) for name in list(self.server.objects) if name.startswith(bucket))
        names = [name for name in names if name >= first and name.startswith(asked.get("prefix", ""))]
        names = [name for name in names if not asked.get("endOffset") or name < asked["endOffset"]]
        sizes = {name: len(self.server.objects.get(bucket + name, (b"", 0))[0]) for name in names[:PAGE]}
        page: dict[str, Any] = {"items": [{"name": name, "size": str(size)} for name, size in sizes.items()]}
        self.answer(200, json.dumps(page | ({"nextPageToken": names[PAGE]} if names[PAGE:] else {})).encode())

    def request_of(self) -> tuple[str, dict[str, str], bytes]:
        """Returns BUCKET/NAME, or BUCKET/ alone, the parameters and the body of the request."""
        place = urlsplit(self.path)
        found = re.fullmatch(r"(?:/upload)?/storage/v1/b/([^/]+)/o(?:/(.*))?", place.path)
        assert found is not None, self.path
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = {name: values[0] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        return f"{found[1]}/{unquote(found[2] or '')}", asked, body

    def holds(self, asked: dict[str, str], generation: int) -> bool:
        """Returns whether the preconditions hold for an object of this generation, 0 if there is none."""
        expected, other = asked.get("ifGenerationMatch"), asked.get("ifGenerationNotMatch")
        return expected in (None, str(generation)) and other != str(generation)

    def has_fault(self) -> bool:
        """Returns whether a fault has ended the request."""
        with self.server.changing:
            is_busy = self.server.busy > 0
            self.server.busy -= is_busy
        is_away = time.monotonic() < self.server.away_until
        self.server.counts["FAULT"] += is_busy or is_away
        if is_away:
            self.hang_up()
        elif is_busy:
            self.answer(503)
        return is_busy or is_away

    def hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self, status: int, content: bytes = b"", generation: int = 0, part: str = "") -> None:
        self.send_response(status)
        if generation:
            self.send_header("x-goog-generation", str(generation))
        if part:
            self.send_header("Content-Range", part)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing."""


@functools.cache
def server() -> Storage:
    """Returns the one server of this process, started: TensorStore reads its address once."""
    storage = Storage()
    threading.Thread(target=storage.serve_forever, daemon=True).start()
    return storage


@contextlib.contextmanager
def google_storage() -> Iterator[Storage]:
    """Yields an empty storage to which gs:// leads within it, in processes that are started too."""
    storage = server()
    storage.empty()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://127.0.0.1:{storage.server_port}")
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "no-token")
        yield storage
    storage.empty()
