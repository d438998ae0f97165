"""Requests to a decoder: a source or a prompt, with all that its answer depends on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flaxformer_lite.core.search.forced import Forced
from flaxformer_lite.core.search.settings import DecodeConfig


@dataclass(frozen=True)
class Request:
    """A source or a prompt as token ids, and how it is answered."""

    source: Sequence[int]
    """Token ids; of a source with EOS."""
    settings: DecodeConfig | None = None
    """Settings of the same `program` as the decoder's; None: the decoder's."""
    limit: int | None = None
    """A maximum length of the answer, its end included, in addition to that of the settings."""
    seed: int = 0
    """An unsigned 32-bit number. Sampled tokens depend only on it, the index and the number of the sample."""
    index: int | None = None
    """The number of the request in samples and messages; None: its place among the requests."""
    forced: Forced = Forced()
    """The tokens that the answer must have: a beam search where these are terms."""

    @classmethod
    def of(cls, asked: "Request | Sequence[int]") -> "Request":
        """Returns a request as it is, and token ids as a request for an answer to them."""
        return asked if isinstance(asked, Request) else cls(asked)

    def number(self, place: int) -> int:
        """Returns the index; without one, `place`, the request's place among all."""
        return place if self.index is None else self.index


def requests_in_order(sources: Iterable[Sequence[int]], seed: int = 0, first: int = 0) -> list[Request]:
    """Returns a request for each source, with one seed, and indices from `first` on."""
    return [Request(source, seed=seed, index=index) for index, source in enumerate(sources, first)]
