"""Refusals of requests: an HTTP status, and the JSON object that clients of OpenAI's interface read."""

from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""Kinds of errors by status; other statuses below 500 are `invalid_request_error`, those from 500 on `server_error`."""


class Refusal(Exception):
    """A request that is not answered, and the reason."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.retry_after = status, message, code, param, retry_after
        """`retry_after`: seconds after which a client may try again; 0: the header is left out."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})

    def as_json(self) -> dict[str, Any]:
        """Returns the error as OpenAI's clients expect it."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}
