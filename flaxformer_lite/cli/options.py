"""Options that several commands share, and the values with types that they become.

Beside the commands and `main.py`, which calls them, no other file reads what argparse returns.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from flaxformer_lite.base.model_names import is_foreign
from flaxformer_lite.cli.input_lines import LINES_AT_ONCE
from flaxformer_lite.core.base.bounds import WEIGHTS_DTYPES
from flaxformer_lite.engine import ENGINES

if TYPE_CHECKING:
    from flaxformer_lite.cli.engines import OpenedT
    from flaxformer_lite.cli.output import Output
    from flaxformer_lite.core.parallel import MeshConfig
    from flaxformer_lite.engine.exports import OwnConfig, RunWeights

JSON_LINES = "files of JSON lines"
"""A kind of files that has no columns."""
OptionsT = TypeVar("OptionsT")

SYSTEMS = ("bert-tf", "matrix-view", "nlp-in-action", "paddle", "torch-transformer")
"""The older systems that `import` and `export` know; named here too, because their files need JAX."""


def typed(kind: type[OptionsT], arguments: argparse.Namespace) -> OptionsT:
    """Returns options as a dataclass, by the names of its fields."""
    return kind(**{field.name: getattr(arguments, field.name) for field in fields(kind)})  # type: ignore[arg-type]


class OptionEffect(NamedTuple):
    """The effect of an option on the answers of a command."""

    option: str
    decides: bool
    """Whether the value decides the answers: a folder of answers that was begun with another value is refused."""
    of_jax: bool
    """Whether only JAX obeys the option."""
    is_setting: bool
    """Whether the option is for a setting of `decode`."""
    is_run: bool
    """Whether the value names a run, or several."""


def add_option(
    parser: argparse.ArgumentParser,
    *names: str,
    decides: bool = True,
    of_jax: bool = False,
    is_setting: bool = False,
    is_run: bool = False,
    **about: Any,
) -> None:
    """Adds an option, and its `OptionEffect` to `arguments.marks`. about: keywords of `add_argument`."""
    added = parser.add_argument(*names, **about)
    mark = OptionEffect(names[0], decides, of_jax, is_setting, is_run)
    parser.set_defaults(marks={**(parser.get_default("marks") or {}), added.dest: mark})


def add_run(parser: argparse.ArgumentParser, about: str = "the run folder") -> None:
    """Adds the argument for the folder of a run."""
    add_option(parser, "folder", decides=False, is_run=True, metavar="RUN", help=about)


def run_of(name: str) -> str:
    if not is_foreign(name):
        return name
    from flaxformer_lite.interop.loading import imported  # with JAX

    return imported(name)


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
            help="what answers; auto: CTranslate2 on a CPU where it is installed and obeys all settings, else JAX; default: "
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

    Raises: ValueError for int8 without CTranslate2: JAX has no int8, and holds float32 where CTranslate2 holds int8.
    """
    dtype = arguments.weights_dtype
    if dtype == "int8" and arguments.engine == "jax":
        raise ValueError("--weights-dtype int8 is CTranslate2's: choose --engine ctranslate2, or float32 or bfloat16")
    dtype = "float32" if dtype == "int8" else dtype
    return {"weights": arguments.weights, "weights_dtype": dtype, "mesh": chosen_mesh(arguments)}


def typed_engine(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the typed engine, as keywords of `Run.searching`."""
    if arguments.engine == "jax":
        return {}
    return {"engine": arguments.engine, "weights_dtype": arguments.weights_dtype}


def run_by_engine(
    arguments: argparse.Namespace, opened: "Callable[[RunWeights, OwnConfig], OpenedT]"
) -> "OpenedT | None":
    """Returns the run as CTranslate2 reads it; None: JAX answers. `arguments.engine` then has the name of the engine.

    arguments: of a command with a run and `add_weights`. opened, and errors: see `engines.without_jax`.
    """
    from flaxformer_lite.cli import engines
    from flaxformer_lite.engine.exports import RunWeights

    wanted = RunWeights(arguments.folder, arguments.weights, None, arguments.weights_dtype, tuple(arguments.imports))
    run = engines.without_jax(wanted, arguments.engine, opened, typed_for_jax(arguments))
    arguments.engine = "jax" if run is None else "ctranslate2"
    return run


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
    marks: dict[str, OptionEffect] = getattr(arguments, "marks", {})
    return {
        name: mark.option for name, mark in marks.items() if mark.is_setting and getattr(arguments, name) is not None
    }


def spelled(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the options that stand for settings in messages, by the paths of the settings: typed ones, and those of the mesh."""
    decode = {f"decode.{setting}": option for setting, option in typed_options(arguments).items()}
    mesh = [axis for axis in ("tensor", "fsdp") if f"mesh.{axis}" in vars(arguments)]
    return decode | {f"train.mesh.{axis}": f"--mesh.{axis}" for axis in mesh}


def add_lines(
    parser: argparse.ArgumentParser, engine: str | None = None, kind: str = "text files, plain or gzipped"
) -> None:
    """Adds the arguments of commands that process lines with a run. engine: see `add_weights`. kind: of the files."""
    add_run(parser)
    add_option(parser, "files", decides=False, metavar="FILE", nargs="*", default=[], help=f"{kind}; default: stdin")
    if kind != JSON_LINES:
        add_column(parser)
    add_weights(parser, engine=engine)


def add_hours(parser: argparse.ArgumentParser, about: str) -> None:
    """Adds the time of a command that makes a whole run."""
    parser.add_argument("--hours", type=float, metavar="H", help=about)


def add_column(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser,
        "--column",
        metavar="COLUMN",
        action="append",
        default=[],
        help="a column of a TSV or CSV with the text, a number from 0 or a name in the header; twice for two texts; default: "
        "the one that the run was trained on",
    )


def add_output(parser: argparse.ArgumentParser, command: str, file: str = "") -> None:
    """Adds the options of a folder of answers. file: the name of the one file that `-o` may be too."""
    parser.set_defaults(command=command)
    add_option(
        parser,
        "-o",
        "--output",
        decides=False,
        metavar=f"{file}|OUT/" if file else "OUT/",
        help=("one new file, or " if file else "")
        + "a folder of pieces, also gs:// or s3://; killed, the same command goes on with the missing ones",
    )
    pieces = f"lines in a piece of OUT/; default: {LINES_AT_ONCE}"
    add_option(parser, "--pieces", decides=False, type=int, metavar="N", help=pieces)
    share = "the share of OUT/ that this process answers, such as 3/8; default: its place in SLURM or a TPU pod, or all"
    add_option(parser, "--part", decides=False, metavar="K/N", help=share)
    add_option(
        parser,
        "--join",
        decides=False,
        action="store_true",
        help="make one file of OUT/ if all pieces are there; alone without FILEs",
    )


def chosen_output(arguments: argparse.Namespace) -> "Output":
    """Returns the typed options of `add_output`, with what decides the answers."""
    from flaxformer_lite.cli.output import Output

    deciding = {"command", *(name for name, mark in arguments.marks.items() if mark.decides)}
    decides = {
        "run": Path(arguments.folder).absolute().name,
        "ensemble": [Path(one).absolute().name for one in getattr(arguments, "ensemble", [])],
        "files": [Path(file).name for file in arguments.files],
        "pieces": arguments.pieces or LINES_AT_ONCE,
        **{name: value for name, value in vars(arguments).items() if name in deciding},
    }
    names = ("output", "pieces", "part", "join", "files")
    given = {name: getattr(arguments, name) for name in names}
    return Output(**given, terms=getattr(arguments, "terms", None), decides=decides)


def typed_for_jax(arguments: argparse.Namespace) -> list[str]:
    """Returns the typed options that only JAX obeys."""
    return [mark.option for name, mark in arguments.marks.items() if mark.of_jax and vars(arguments)[name]]


def typed_for_translations(arguments: argparse.Namespace) -> list[str]:
    """Returns the typed options that only translations need."""
    names = [name for name in TranslationOptions.__annotations__ if vars(arguments)[name]]
    typed = [*typed_options(arguments).values(), *(arguments.marks[name].option for name in names)]
    others = {"--bleu-tokenizer": arguments.bleu_tokenizer, "--metric": arguments.metrics}
    return [*typed, *(option for option, value in others.items() if value)]


def add_translation(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `translate` and `evaluate` share, but those of `add_weights`."""
    add_option(
        parser,
        "--ensemble",
        decides=False,
        is_run=True,
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
    add_setting(
        parser, "--beam-size", "beam_size", int, "N", "beam size, 1 is greedy; default: decode.beam_size of the config"
    )
    alpha = "exponent of the length penalty, higher for longer answers; default: decode.alpha of the config"
    stopping = "when a beam search stops: True, False or never; default: decode.early_stopping of the config"
    add_setting(parser, "--alpha", "alpha", float, "A", alpha)
    add_setting(parser, "--early-stopping", "early_stopping", early_stopping, "WHEN", stopping)
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
        is_run=True,
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


def early_stopping(word: str) -> bool | str:
    """Returns the setting that a word spells; another word is refused as a setting."""
    return {"True": True, "False": False}.get(word, word)


@dataclass(frozen=True)
class TranslationOptions:
    """The options that `translate` and `evaluate` share, by their names."""

    source_language: str | None
    target_language: str | None
    ensemble: Sequence[str]
    minimum_risk: str | None
    best_by: str | None
    samples: int | None
    temperature: float | None
    terms: str | None
    placeholders: bool
    prefix: str | None

    @property
    def typed(self) -> dict[str, Any]:
        """The typed ones by name, for a report."""
        return {name: value for name, value in vars(self).items() if value}

    def choice(self) -> dict[str, Any]:
        """Returns the keywords of `Run.hypotheses` for the choice of the best candidate. Raises: ValueError, as `load`."""
        if self.minimum_risk and self.best_by:
            raise ValueError("--minimum-risk and --best-by both choose the answer: leave one out")
        if self.samples is not None and not (self.minimum_risk or self.best_by):
            raise ValueError(
                "--samples are candidates of --best-by and --minimum-risk: add one, or leave --samples out"
            )
        if self.temperature is not None and self.samples is None:
            raise ValueError("--temperature is for samples: add --samples, or leave --temperature out")
        best_by: Any = self.minimum_risk
        if self.best_by:
            from flaxformer_lite.run import load  # with JAX

            best_by = load(self.best_by)
        choice = {"best_by": best_by, "samples": self.samples, "temperature": self.temperature}
        return {name: value for name, value in choice.items() if value is not None}

    def forced(self) -> dict[str, object]:
        """Returns the keywords of `Run.hypotheses` for the texts that translations must have.

        Raises: ValueError for a file of terms with a mistake, or without terms.
        """
        forced: dict[str, Any] = {
            name: self.typed[name] for name in ("terms", "placeholders", "prefix") if name in self.typed
        }
        if self.terms:
            from flaxformer_lite.files.text.terms import Terms

            forced["terms"] = Terms.read(self.terms)
            if not forced["terms"]:
                raise ValueError(
                    f"{self.terms} has no terms: write a term, a tab and its translation, or leave --terms out"
                )
        if forced and self.samples is not None:
            raise ValueError("--terms, --placeholders and --prefix are for a search: leave them or --samples out")
        return forced


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
    """Imports what `--import` names, then each model of others in the place of a run. Raises: ValueError if that fails."""
    for name in getattr(arguments, "imports", []):
        from flaxformer_lite.config.outside import import_named  # with JAX, which most mistakes do not need

        import_named(name)
    marks: dict[str, OptionEffect] = getattr(arguments, "marks", {})
    for name in (name for name, mark in marks.items() if mark.is_run and vars(arguments)[name]):
        value = vars(arguments)[name]
        setattr(arguments, name, run_of(value) if isinstance(value, str) else [run_of(one) for one in value])
