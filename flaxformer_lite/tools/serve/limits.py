"""The limits of a server, and the refusal of a request: an HTTP status with OpenAI's object of an error."""

from dataclasses import dataclass

from flaxformer_lite.core.base.bounds import Checked, PositiveFloat, PositiveInt

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""
ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""Kinds of errors by status; other statuses below 500 are `invalid_request_error`, those from 500 on `server_error`."""


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
    """Texts in a request; beyond it: status 413. Also the texts that one call to the model answers on each group of devices."""
    new_tokens: PositiveInt = 1024
    """Tokens that a request may ask for in an answer; beyond it: status 422."""
    body_bytes: PositiveInt = 2**20
    """Bytes of a request; beyond it: status 413."""
    streams: PositiveInt = 4
    """Texts that are streamed at once; further ones wait in the queue."""
    beam_size: PositiveInt = 16
    """Beams that a request may ask for, and answers to one text; beyond it: status 422."""


class Refusal(Exception):
    """A request that is not answered, and the reason. `retry_after`: seconds; 0: without that header."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.retry_after = status, message, code, param, retry_after

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def as_json(self) -> dict[str, object]:
        """Returns the error as OpenAI's clients expect it."""
        kind = ERROR_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
