"""The choice of an engine: what CTranslate2 obeys as our own search does, and what this machine has."""

import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from flaxformer_lite.base.console import note_once
from flaxformer_lite.base.hardware import has_nvidia_device, has_tpu
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.engine import ENGINES

OpenedT = TypeVar("OpenedT")
OLDEST = (4, 8)
"""The oldest release of CTranslate2 that is known to import no other library, and to answer as our own search does."""
MOST_ALPHA = 30
"""The largest exponent of a length whose power is a number of float32, for lengths that occur."""
INSTALL = 'pip install "flaxformer-lite[ctranslate2]"'


class CannotAnswer(Mistake):
    """CTranslate2 cannot answer, and JAX could; the message is the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}, or choose engine jax")
        self.reason = reason


def is_chosen(engine: str, weights_dtype: str | None) -> bool:
    """Returns whether CTranslate2 is asked for, by name or by a type of weights that JAX lacks: JAX does not answer instead.

    Raises: ValueError for another engine, or a type that is given to JAX here.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}: it must be one of {', '.join(ENGINES)}")
    if engine == "jax" and weights_dtype is not None:
        raise ValueError(
            f"weights_dtype is {weights_dtype!r}, but engine is jax, whose type load chooses: leave it out"
        )
    return engine == "ctranslate2" or weights_dtype == "int8"


def check_obeyed(decode: DecodeConfig, kind: str = "Translator") -> None:
    """Raises: CannotAnswer that lists the settings that CTranslate2 lacks, or obeys otherwise than our own search."""
    wrong = obstacles(decode, kind)
    if wrong:
        raise CannotAnswer(f"CTranslate2 does not obey {', '.join(wrong)} as JAX does: change that")


def obstacles(decode: DecodeConfig, kind: str = "Translator") -> list[str]:
    """Returns the settings, with their values, that CTranslate2 lacks or obeys otherwise than our own search; [] without any.

    kind: the name of CTranslate2's class that searches.

    Its rules renormalize the probabilities. At the maximum length it drops open beams that only answers after the best one may
    need. `EngineSearch.with_early_ends` needs probabilities without bans.
    """
    beams = decode.beam_size > 1
    renormalizes = beams and decode.renormalize  # a greedy answer is scored by the model's own probabilities
    cuts_beams = not decode.finish_at_limit or decode.forced_eos_id is not None
    may_end_early = beams and decode.forced_bos_id is not None and decode.min_new_tokens < 2
    several = decode.num_hypotheses > 1
    banned = bool(decode.suppress_ids) or decode.num_ids is not None
    translates = kind == "Translator"
    wrong = {
        "sampling": decode.sampling is not None and decode.sampling.temperature > 0,
        "repetition_penalty": decode.repetition_penalty != 1,
        "no_repeat_ngram": decode.no_repeat_ngram > 0,
        "suppress_ids": bool(decode.suppress_ids) and not renormalizes,
        "min_new_tokens": decode.min_new_tokens > 0 and not renormalizes,
        "length_penalty": beams and decode.length_penalty == "gnmt",
        "alpha": abs(decode.alpha) > MOST_ALPHA,
        "early_stopping": beams and decode.early_stopping == "never",
        "num_hypotheses": several and (cuts_beams or not beams),
        "eos_ids": len({*decode.eos_ids}) > 1 if beams else not decode.eos_ids,
        "bos_id": translates and decode.bos_id is None,
        "forced_bos_id": may_end_early and (banned or several) if translates else decode.forced_bos_id is not None,
        "forced_eos_id": decode.forced_eos_id not in (None, *decode.eos_ids),
    }
    return [f"decode.{name} {getattr(decode, name)!r}" for name, is_wrong in wrong.items() if is_wrong]


def is_installed() -> bool:
    """Returns whether CTranslate2 is installed, without importing it."""
    return importlib.util.find_spec("ctranslate2") is not None


def library() -> ModuleType:
    """Returns the module of CTranslate2. Raises: CannotAnswer, with the remedy, if it is not installed, too old or broken."""
    # Threads of OpenMP that wait in a loop take a busy machine's time from those that compute: 5 CPU seconds became 43.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import ctranslate2
    except ImportError as error:
        reason = str(error) if is_installed() else "it is not installed"
        raise CannotAnswer(f"ctranslate2 cannot be imported ({reason}): {INSTALL}") from None
    version: str = getattr(ctranslate2, "__version__", "0.0")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise CannotAnswer(f"ctranslate2 is {version}: it must be {oldest} or newer: {INSTALL} --upgrade")
    module: ModuleType = ctranslate2
    return module


def uses_cpu() -> bool:
    """Returns whether JAX would use the CPU here, without importing it: by JAX_PLATFORMS, its plug-ins and the devices."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return platforms.split(",")[0] == "cpu"
    spec = importlib.util.find_spec("jax_plugins")
    plugins = list[str]()
    if spec is not None:
        for path in spec.submodule_search_locations or ():
            plugins += os.listdir(path)
    others = any("cuda" not in name for name in plugins)
    has_libtpu = importlib.util.find_spec("libtpu") is not None
    return not (others or (plugins and has_nvidia_device()) or (has_libtpu and has_tpu()))


def chosen_engine(
    engine: str, weights_dtype: str | None, opened: Callable[[], OpenedT], tell: Callable[[str], None] = note_once
) -> OpenedT | None:
    """Returns what `opened` returns, where CTranslate2 answers: it is asked for, or fits this machine. None: JAX answers.

    tell: is called with a line that says why CTranslate2, which would fit, cannot answer.

    Raises: as `opened`, if CTranslate2 is asked for.
    """
    asked = is_chosen(engine, weights_dtype)
    if asked or (engine == "auto" and uses_cpu() and is_installed()):
        try:
            return opened()
        except (CannotAnswer, OSError) as error:
            if asked:
                raise
            tell(f"engine jax: {getattr(error, 'reason', error)}")
    return None
