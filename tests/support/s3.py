"""An S3 server on this machine, and a gate before it that can be shut: the server goes away and comes back."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

BUCKET = "bucket"


class Gate:
    """Forwards connections from a port of its own to another; while it is shut there are none."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = free_port()
        self.connections: list[socket.socket] = []
        self.open()

    def open(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.thread = threading.Thread(target=self._accept, args=(self.listener,), daemon=True)
        self.thread.start()

    def shut(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                self.connections += [client, server]
                threading.Thread(target=forward, args=(client, server), daemon=True).start()


def forward(client: socket.socket, server: socket.socket) -> None:
    with contextlib.suppress(OSError), client, server:
        while True:
            for source in select.select([client, server], [], [])[0]:
                content = source.recv(2**16)
                if not content:
                    return
                (server if source is client else client).sendall(content)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def s3_gate() -> Iterator[Gate]:
    """Starts a server with the bucket BUCKET, to which s3:// leads within it. Skips the test without moto and s3fs."""
    for package in ("moto.server", "flask", "s3fs"):
        pytest.importorskip(
            package, reason='an S3 server on this machine needs moto and s3fs: pip install ".[test-all]"'
        )
    import s3fs

    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).read()
                break
            assert process.poll() is None and time.monotonic() < deadline, "moto does not start"
            time.sleep(0.1)
        gate = Gate(port)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{gate.port}")
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            s3fs.S3FileSystem.clear_instance_cache()
            s3fs.S3FileSystem().mkdir(BUCKET)
            yield gate
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        process.kill()
        process.wait()


def train_environment() -> dict[str, str]:
    """The environment of a command that trains on one device of the CPU."""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    return environment | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
