"""Searches with the parameters of a run: decoders with their compiled functions, and CTranslate2's exports."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxtyping import PyTree

from flaxformer_lite.core.data import Lengths
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.rows import Weights
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.special_ids import check_token_ids
from flaxformer_lite.core.text.tokenizer import UnknownText
from flaxformer_lite.engine.engine_run import EngineRun, open_engine
from flaxformer_lite.engine.exports import RunWeights, state_of
from flaxformer_lite.engine.rules import CannotAnswer, check_obeyed, library
from flaxformer_lite.engine.search import EngineSearch
from flaxformer_lite.tasks.model import TextModel


class Read(NamedTuple):
    """The checkpoint that a run was loaded from."""

    wanted: RunWeights
    state: str
    """The state of the run folder before it was read."""
    params: PyTree
    """Its parameters, by which others are known."""


@dataclass(frozen=True)
class Kept:
    """Things that searches keep from call to call."""

    decoders: dict[DecodeConfig, Decoder] = field(default_factory=dict)
    """Decoders by the `program` of their settings, each with its compiled functions."""
    laid_out: dict[tuple[tuple[Transformer, ...], int | None], Weights] = field(default_factory=dict)
    """The parameters as searches read them, by the models and `decode.num_ids`: see `RunSearcher.weights`."""
    engines: dict[RunWeights, EngineRun] = field(default_factory=dict)
    """The exports that CTranslate2 has read."""


@dataclass(frozen=True)
class RunSearcher:
    """Searches with the mean of the predictions of models, mostly of one."""

    members: Sequence[TextModel]
    """The first one's settings count."""
    read: Read | None
    """The checkpoint of the parameters."""
    kept: Kept

    @property
    def unknown(self) -> UnknownText:
        return self.members[0].unknown

    def search(self, settings: DecodeConfig) -> Decoder:
        """Returns a decoder with these settings. Decoders of the same `program` share what they compile."""
        first, program = self.members[0], settings.program
        if program not in self.kept.decoders:
            objective, longest = first.config.objective, first.config.objective.longest_row(first.config.data.longest)
            example = zero_batch(objective, Bucket(Lengths(*(min(length, 16) for length in longest)), 1))
            objective.check_prompts(example, first.config.model)
            models = tuple(member.model for member in self.members)
            self.kept.decoders[program] = Decoder(models, program, objective.prompt_attention, first.placement)
        return self.kept.decoders[program].under(settings)

    def weights(self, search: Decoder | EngineSearch) -> Any:
        """Returns the parameters as a decoder's searches read them, kept for the next call; None: CTranslate2 has its own."""
        if isinstance(search, EngineSearch):
            return None
        key, params = (search.models, search.config.num_ids), [member.params for member in self.members]
        kept = self.kept.laid_out.get(key)
        if kept is not None and all(one["params"] is now for one, now in zip(kept.given, params, strict=True)):
            return kept
        weights = self.kept.laid_out[key] = search.lay_out(*({"params": now} for now in params))
        return weights

    def check_source(self, source: Sequence[int], name: str) -> None:
        """Raises: ValueError for an id that is outside the vocabulary."""
        check_token_ids(source, self.members[0].config.model.vocab_size, f"{name} has")

    def engine_search(self, settings: DecodeConfig, weights_dtype: str | None) -> EngineSearch:
        """Returns a search by CTranslate2. Raises: CannotAnswer if it cannot answer as these do; ValueError, OSError."""
        first = self.members[0]
        if first.config.model.continues_texts:
            raise CannotAnswer("CTranslate2 is for encoder–decoders here")
        check_obeyed(settings)
        if len(self.members) > 1 or first.placement.tensor > 1:
            raise CannotAnswer("CTranslate2 has no ensembles and divides no model: use one run on one device")
        if self.read is None or self.read.params is not first.params:
            raise CannotAnswer("CTranslate2 reads checkpoints, and these parameters are not those of one: load it")
        wanted = self.read.wanted._replace(dtype=weights_dtype or self.read.wanted.dtype)
        if wanted not in self.kept.engines:
            library()
            if state_of(wanted.run) != self.read.state:
                raise CannotAnswer(f"{wanted.run} has changed since it was loaded: load it again")
            self.kept.engines[wanted] = open_engine(wanted)
        return self.kept.engines[wanted].search(settings)
