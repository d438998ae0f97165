"""A run that CTranslate2 reads: `translate` from the shell, without JAX. And the search that a `Run` takes from the same export."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from flaxformer_lite.base.hardware import usable_cores
from flaxformer_lite.base.remote_files import describe_error
from flaxformer_lite.core.search.answers import Searches
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.languages import Languages
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.engine.exports import Export, RunWeights, decode_settings, export_of, with_tuples
from flaxformer_lite.engine.rules import CannotAnswer, library
from flaxformer_lite.engine.search import EngineSearch, Sizes, without_padding
from flaxformer_lite.engine.texts import TextTranslator
from flaxformer_lite.files.text.kinds import load_run_tokenizers

COMPUTE_TYPES = {"float32": "float32", "bfloat16": "bfloat16", "int8": "int8_float32"}
"""CTranslate2's name for products with weights of a type."""


LARGE = 2**28
"""Bytes of a model whose products all cores share. They answer smaller ones side by side, a batch each."""


@dataclass(frozen=True)
class EngineRun(TextTranslator):
    """An export, ready to translate."""

    wanted: RunWeights
    export: Export
    translator: Any
    """CTranslate2's."""
    tokenizers: Tokenizers | None
    settings: DecodeConfig

    @property
    def decode(self) -> DecodeConfig:
        return self.settings

    @property
    def path(self) -> Path:
        return Path(self.wanted.run)

    @property
    def sizes(self) -> Sizes:
        return Sizes(*self.export.facts["sizes"])

    @property
    def source_ids(self) -> int:
        return self.sizes.source_ids

    @property
    def max_source_length(self) -> int:
        return self.sizes.longest_source

    @property
    def step(self) -> int:
        """The step of the checkpoint that was exported."""
        return self.origin[0][0]

    @property
    def origin(self) -> list[tuple[int, str, str]]:
        """The step and the digests of the run that was exported, as `Run.origin`."""
        return [tuple(self.export.facts["origin"])]

    def searching(self, **options: Any) -> EngineSearch:
        return self.search(self.decode.changed(options))

    def search(self, decode: DecodeConfig) -> EngineSearch:
        """Returns a search under these settings. Raises: ValueError if CTranslate2 does not obey them."""
        return EngineSearch(self.translator, decode, self.sizes)

    def check_sources(self, sources: Sequence[Sequence[int]]) -> None:
        """Raises: ValueError also for padding within a source."""
        super().check_sources(sources)
        for number, source in enumerate(sources):
            without_padding(source, self.decode.pad_id, f"source {number}")

    def weights(self, decoder: Searches) -> None:
        return None

    def directed(self, tokenizers: Tokenizers, decode: DecodeConfig) -> Self:
        return dataclasses.replace(self, tokenizers=tokenizers, settings=decode)


def open_engine(wanted: RunWeights) -> EngineRun:
    """Returns the run as CTranslate2 reads it, exported first where that was not done yet.

    Raises: CannotAnswer if CTranslate2 is missing, or cannot have the model or the type of weights; ValueError if the run has no
        such weights; OSError.
    """
    if wanted.dtype not in COMPUTE_TYPES:
        raise ValueError(f"weights_dtype is {wanted.dtype!r}: it must be one of {', '.join(COMPUTE_TYPES)}")
    ctranslate2, kind = library(), COMPUTE_TYPES[wanted.dtype]
    if kind not in ctranslate2.get_supported_compute_types("cpu"):
        raise CannotAnswer(
            f"weights_dtype is {wanted.dtype}, whose products CTranslate2 does not have on this processor: use float32 or int8"
        )
    export = export_of(wanted)
    facts, sizes = export.facts, Sizes(*export.facts["sizes"])
    is_large = (export.folder / "model.bin").stat().st_size > LARGE
    side_by_side, of_each = (1, usable_cores()) if is_large else (usable_cores(), 1)
    threads = {"inter_threads": side_by_side, "intra_threads": of_each}
    try:
        translator = ctranslate2.Translator(str(export.folder), device="cpu", compute_type=kind, **threads)
    except RuntimeError as error:
        raise CannotAnswer(f"CTranslate2 cannot read {export.folder} ({describe_error(error)}): delete it") from None
    tokenizers = None
    if facts["has_tokenizer"]:
        languages = None if facts["languages"] is None else Languages(**with_tuples(facts["languages"]))
        ids, two = (sizes.source_ids, sizes.target_ids), facts["has_target_tokenizer"]
        tokenizers = load_run_tokenizers(export.folder, ids, two=two, languages=languages)
    return EngineRun(wanted, export, translator, tokenizers, decode_settings(facts["decode"])).in_own_direction()
