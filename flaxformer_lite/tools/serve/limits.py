"""The limits of a server, each with the status of a request beyond it."""

from dataclasses import dataclass

from flaxformer_lite.base.bounds import Checked, PositiveFloat, PositiveInt

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""
CONNECTIONS = "connections"
"""Names the number of open connections in the state of a request."""


@dataclass(frozen=True, kw_only=True)
class Limits(Checked, at="serve"):
    """Limits of requests and of the queue."""

    connections: PositiveInt = 512
    """Connections that are open at once; beyond them: status 503."""
    seconds: PositiveFloat = 60.0
    """Seconds from a request to the end of its answer, waiting and compiling included; beyond them: status 504."""
    queue: PositiveInt = 256
    """Texts that wait for the model; beyond it: status 429."""
    texts: PositiveInt = 64
    """Texts in a request; beyond it: status 413. Also the texts that one call to the model answers."""
    new_tokens: PositiveInt = 1024
    """Tokens that a request may ask for in an answer; beyond it: status 422."""
    body_bytes: PositiveInt = 2**20
    """Bytes of a request; beyond it: status 413."""
    streams: PositiveInt = 4
    """Texts that are streamed at once; further ones wait in the queue."""
    beam_size: PositiveInt = 16
    """Beams that a request may ask for, and answers to one text; beyond it: status 422."""
