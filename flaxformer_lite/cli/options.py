"""Options that several commands share: settings of decoding, weights, translation, and `--import`."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from flaxformer_lite.core.base.bounds import WEIGHTS_DTYPES
from flaxformer_lite.engine import ENGINES

if TYPE_CHECKING:
    from flaxformer_lite.core.parallel import MeshConfig

SYSTEMS = ("bert-tf", "matrix-view", "nlp-in-action", "paddle", "torch-transformer")
"""The older systems that `import` and `export` know; named here too, because their files need JAX."""


class Mark(NamedTuple):
    """The part of an option in the answers of a command."""

    option: str
    decides: bool
    """Whether the value decides the answers: a folder of answers that was begun with another value is refused."""
    of_jax: bool
    """Whether only JAX obeys the option."""
    is_setting: bool
    """Whether the option is for a setting of `decode`."""


def add_option(
    parser: argparse.ArgumentParser,
    *names: str,
    decides: bool = True,
    of_jax: bool = False,
    is_setting: bool = False,
    **about: Any,
) -> None:
    """Adds an option with its `Mark`, which `marks` of the arguments has. about: keywords of `add_argument`."""
    added = parser.add_argument(*names, **about)
    mark = Mark(names[0], decides, of_jax, is_setting)
    parser.set_defaults(marks={**(parser.get_default("marks") or {}), added.dest: mark})


def add_run(parser: argparse.ArgumentParser, about: str = "the run folder") -> None:
    """Adds the argument for the folder of a run."""
    add_option(parser, "folder", decides=False, metavar="RUN", help=about)


def add_setting(
    parser: argparse.ArgumentParser, option: str, setting: str, kind: Callable[[str], Any], metavar: str, about: str
) -> None:
    """Adds an option for the setting `decode.{setting}`, for example `beam_size` or `sampling.top_k`."""
    add_option(parser, option, dest=setting, type=kind, metavar=metavar, help=about, is_setting=True)


def add_weights(
    parser: argparse.ArgumentParser, default: str = "the config's weights", engine: str | None = None
) -> None:
    """Adds the options that say which weights of a run are used, and in which type: the arguments of `load`.

    engine: the default of `--engine`; None: the command has one engine, JAX.
    """
    add_option(parser, "--weights", help=f"last, best, ema or average:N; default: {default}")
    add_option(
        parser,
        "--weights-dtype",
        choices=WEIGHTS_DTYPES if engine is None else (*WEIGHTS_DTYPES, "int8"),
        default=WEIGHTS_DTYPES[0],
        help="type of the products with weights; bfloat16 is faster on GPUs, TPUs and CPUs that multiply it"
        + ("" if engine is None else ", int8 is CTranslate2's")
        + "; default: float32",
    )
    if engine is not None:
        add_option(
            parser,
            "--engine",
            choices=ENGINES,
            default=engine,
            help="what searches; auto: CTranslate2 on a CPU where it is installed and obeys all settings, else JAX; default: "
            f"{engine}",
        )
    for axis in ("tensor", "fsdp"):
        add_option(
            parser,
            f"--mesh.{axis}",
            of_jax=True,
            type=int,
            metavar="N",
            help=f"devices that divide the model, as train.mesh.{axis} does; default: the fewest that have the memory",
        )


def chosen_weights(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the typed choices of `add_weights`, as keywords of `load`.

    Raises: ValueError for int8 without CTranslate2, which alone has it; JAX then holds float32 beside it.
    """
    dtype = arguments.weights_dtype
    if dtype == "int8" and arguments.engine == "jax":
        raise ValueError("--weights-dtype int8 is CTranslate2's: choose --engine ctranslate2, or float32 or bfloat16")
    dtype = "float32" if dtype == "int8" else dtype
    return {"weights": arguments.weights, "weights_dtype": dtype, "mesh": chosen_mesh(arguments)}


def chosen_engine(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the typed engine, as keywords of `Run.searching`."""
    if arguments.engine == "jax":
        return {}
    return {"engine": arguments.engine, "weights_dtype": arguments.weights_dtype}


def chosen_mesh(arguments: argparse.Namespace) -> "MeshConfig | None":
    """Returns the typed mesh, whose other devices answer rows of their own; None: none was typed."""
    sizes = {axis: vars(arguments)[f"mesh.{axis}"] for axis in ("tensor", "fsdp")}
    typed = {axis: size for axis, size in sizes.items() if size is not None}
    if not typed:
        return None
    from flaxformer_lite.core.parallel import MeshConfig  # with JAX

    return MeshConfig(data=1 if -1 in typed.values() else -1, **typed)


def typed_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of the typed settings, by the last part of their names."""
    return {setting.rpartition(".")[2]: getattr(arguments, setting) for setting in typed_options(arguments)}


def typed_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the typed options, by their settings."""
    marks: dict[str, Mark] = getattr(arguments, "marks", {})
    return {
        name: mark.option for name, mark in marks.items() if mark.is_setting and getattr(arguments, name) is not None
    }


def spelled(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the options that stand for settings in messages, by the paths of the settings: typed ones, and those of the mesh."""
    decode = {f"decode.{setting}": option for setting, option in typed_options(arguments).items()}
    mesh = [axis for axis in ("tensor", "fsdp") if f"mesh.{axis}" in vars(arguments)]
    return decode | {f"train.mesh.{axis}": f"--mesh.{axis}" for axis in mesh}


def add_translation(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `translate` and `evaluate` share, but those of `add_weights`."""
    add_option(
        parser,
        "--ensemble",
        decides=False,
        of_jax=True,
        metavar="RUN",
        action="append",
        default=[],
        help="another run that translates together with RUN, by the mean of the predicted probabilities; may be repeated",
    )
    add_option(
        parser, "--from", dest="source_language", metavar="CODE", help="language of the texts, of data.languages"
    )
    add_option(parser, "--to", dest="target_language", metavar="CODE", help="language of the translations")
    add_option(
        parser,
        "--terms",
        decides=False,
        of_jax=True,
        metavar="FILE",
        help="terms, in each line a text of a source, a tab, and the text that its translation then has",
    )
    add_option(
        parser,
        "--placeholders",
        of_jax=True,
        action="store_true",
        help="keep tags, {names}, %%s and addresses of sources as they are",
    )
    add_option(parser, "--prefix", of_jax=True, metavar="TEXT", help="the beginning of every translation")
    beam = "beam size, 1 is greedy; default: decode.beam_size of the config"
    add_setting(parser, "--beam-size", "beam_size", int, "N", beam)
    alpha = "exponent of the length penalty, higher for longer answers; default: decode.alpha of the config"
    add_setting(parser, "--alpha", "alpha", float, "A", alpha)
    add_option(
        parser,
        "--minimum-risk",
        of_jax=True,
        choices=("chrf", "bleu"),
        help="choose the candidate that is most like all candidates by this metric; they are the answers of the beam",
    )
    add_option(
        parser,
        "--best-by",
        of_jax=True,
        metavar="RUN",
        help="choose the candidate that this run rates best, such as an imported MetricX, or a COMET without reference",
    )
    add_option(
        parser,
        "--samples",
        of_jax=True,
        type=int,
        metavar="N",
        help="candidates of --minimum-risk or --best-by: N samples, no beam",
    )
    add_option(parser, "--temperature", of_jax=True, type=float, metavar="T", help="of the samples; default: 1")


def add_imports(parser: argparse.ArgumentParser) -> None:
    """Adds the option for the files and modules that define classes of a run's config.json, or families."""
    add_option(
        parser,
        "--import",
        decides=False,
        dest="imports",
        metavar="FILE.py|MODULE",
        action="append",
        default=[],
        help="import it first: it has classes of the run's config, or families of Hugging Face's folders, that are not part of "
        "flaxformer_lite; may be repeated",
    )


def import_typed(arguments: argparse.Namespace) -> None:
    """Imports what `--import` names. Raises: ValueError if that fails."""
    for name in getattr(arguments, "imports", []):
        from flaxformer_lite.config.outside import import_named  # with JAX, which most mistakes do not need

        import_named(name)
