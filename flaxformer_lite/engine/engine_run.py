"""A run that CTranslate2 reads: `translate` from the shell, without JAX. And the search that a `Run` takes from the same export."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from flaxformer_lite.base.hardware import usable_cores
from flaxformer_lite.base.remote_files import describe_error
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.answers import Searches
from flaxformer_lite.core.text import Languages
from flaxformer_lite.core.text.special_ids import check_token_ids
from flaxformer_lite.core.text.tokenizer import Tokenizers, UnknownText
from flaxformer_lite.engine.exports import Export, OwnConfig, RunWeights, export_of, read_decode, with_tuples
from flaxformer_lite.engine.generation import TextGenerator
from flaxformer_lite.engine.rules import CannotAnswer, check_obeyed, library
from flaxformer_lite.engine.search import EngineSearch, PromptSearch, Sizes, unpadded
from flaxformer_lite.engine.texts import TextTranslator, in_own_direction, required_tokenizers
from flaxformer_lite.files.chats.form import Sources
from flaxformer_lite.files.chats.translation_prompt import TranslationPrompt
from flaxformer_lite.files.tokenizers.kinds import load_run_tokenizers

if TYPE_CHECKING:
    from flaxformer_lite.files.chats.asking import Asking  # with NumPy

COMPUTE_TYPES = {"float32": "float32", "bfloat16": "bfloat16", "int8": "int8_float32"}
"""CTranslate2's name for products with weights of a type."""


LARGE = 2**28
"""Bytes of a model whose products all cores share. They answer smaller ones side by side, a batch each."""


@dataclass(frozen=True)
class EngineRun:
    """An export, ready to translate."""

    wanted: RunWeights
    export: Export
    library: Any
    """CTranslate2's object that searches."""
    form: "Sources | Asking"
    searching: type[EngineSearch] = EngineSearch

    @property
    def tokenizers(self) -> Tokenizers | None:
        return self.form.tokenizers

    @property
    def decode(self) -> DecodeConfig:
        return self.form.decode

    @cached_property
    def translator(self) -> TextTranslator:
        return TextTranslator(self, self.form)

    @cached_property
    def generator(self) -> TextGenerator:
        return TextGenerator(self, self.tokenizers, self.decode, self.wanted.run)

    @property
    def required_tokenizers(self) -> Tokenizers:
        """The tokenizers. Raises: ValueError if the run has none."""
        return required_tokenizers(self.tokenizers, self.wanted.run)

    @cached_property
    def unknown(self) -> UnknownText:
        """Warns of text that is not in the vocabulary, once for each character."""
        return UnknownText(self.required_tokenizers.source)

    @property
    def sizes(self) -> Sizes:
        return Sizes(*self.export.facts["sizes"])

    @property
    def origin(self) -> list[tuple[int, str, str]]:
        """The step and the digests of the run that was exported, as `Run.origin`."""
        return [tuple(self.export.facts["origin"])]

    def between(self, source: str | None = None, target: str | None = None) -> Self:
        """Returns the run for texts of one direction, as `Run.between`."""
        return replace(self, form=self.form.between(source, target))

    def search(self, settings: DecodeConfig) -> EngineSearch:
        """Returns a search under these settings. Raises: ValueError if CTranslate2 does not obey them."""
        return self.searching(self.library, settings, self.sizes)

    def weights(self, search: Searches) -> None:
        return None

    def check_source(self, source: Sequence[int]) -> None:
        """Raises: ValueError for an id that is outside the vocabulary; CannotAnswer for padding within a source."""
        check_token_ids(source, self.sizes.source_ids, "has")
        unpadded(source, self.decode.pad_id)


def open_export(wanted: RunWeights, kind: str) -> tuple[Export, Any, Tokenizers | None]:
    """Returns the export of a run, made first where that was not done yet; CTranslate2's object of it; and the tokenizers.

    kind: the name of CTranslate2's class.

    Raises: CannotAnswer if CTranslate2 is missing, or cannot have the model or the type of weights; ValueError if the run has no
        such weights; OSError.
    """
    if wanted.dtype not in COMPUTE_TYPES:
        raise ValueError(f"weights_dtype is {wanted.dtype!r}: it must be one of {', '.join(COMPUTE_TYPES)}")
    ctranslate2 = library()
    compute_type = COMPUTE_TYPES[wanted.dtype]
    if compute_type not in ctranslate2.get_supported_compute_types("cpu"):
        raise CannotAnswer(
            f"weights_dtype is {wanted.dtype}, whose products CTranslate2 does not have on this processor: use float32 or int8"
        )
    export = export_of(wanted)
    facts = export.facts
    sizes = Sizes(*export.facts["sizes"])
    is_large = (export.folder / "model.bin").stat().st_size > LARGE
    side_by_side, of_each = (1, usable_cores()) if is_large else (usable_cores(), 1)
    threads = {"inter_threads": side_by_side, "intra_threads": of_each}
    try:
        computes = getattr(ctranslate2, kind)(str(export.folder), device="cpu", compute_type=compute_type, **threads)
    except RuntimeError as error:
        raise CannotAnswer(f"CTranslate2 cannot read {export.folder} ({describe_error(error)}): delete it") from None
    tokenizers = None
    if facts["has_tokenizer"]:
        languages = None if facts["languages"] is None else Languages(**with_tuples(facts["languages"]))
        ids = (sizes.source_ids, sizes.target_ids)
        two = facts["has_target_tokenizer"]
        tokenizers = load_run_tokenizers(export.folder, ids, two=two, languages=languages)
    return export, computes, tokenizers


def open_engine(wanted: RunWeights, kind: str = "Translator") -> EngineRun:
    """Returns the run that translates or continues prompts, as CTranslate2's class `kind` reads it. Raises: as `open_export`."""
    export, library, tokenizers = open_export(wanted, kind)
    searching = PromptSearch if kind == PromptSearch.kind else EngineSearch
    decode = read_decode(export.facts["decode"])
    longest = Sizes(*export.facts["sizes"]).longest_source
    form = Sources(tokenizers, decode, longest, wanted.run)  # type: ignore[arg-type]  # token ids need no tokenizers
    return in_own_direction(EngineRun(wanted, export, library, form, searching))


def open_asking(
    changed: Callable[[DecodeConfig], DecodeConfig], wanted: RunWeights, decode: DecodeConfig
) -> EngineRun | None:
    """Returns the decoder that translates by its chat template; None: it has none. Raises: as `open_obeying`.

    decode: the settings of the run.
    """
    from flaxformer_lite.files.chats.asking import Asking, searched

    check_obeyed(changed(searched(decode)), PromptSearch.kind)
    run = open_engine(wanted, PromptSearch.kind)
    template = run.generator.template() if run.tokenizers else None
    if template is None:
        return None
    most, prompt = run.export.facts["asking"]
    form = Asking(run.required_tokenizers, run.decode, most, template, TranslationPrompt(**prompt))
    run.search(changed(form.settings({})))
    return replace(run, form=form)


def open_obeying(
    kind: str, changed: Callable[[DecodeConfig], DecodeConfig], wanted: RunWeights, own: OwnConfig
) -> EngineRun | None:
    """Returns the run that CTranslate2's class `kind` searches with; changed: gets its own settings, and returns those of a call.

    None: the model does not do such a thing, which JAX reports.

    Raises: as `open_engine`, and CannotAnswer for settings that CTranslate2 does not obey.
    """
    if own.kind != kind:
        return open_asking(changed, wanted, own.decode) if own.kind == PromptSearch.kind else None
    check_obeyed(changed(own.decode), kind)
    return open_engine(wanted, kind)
