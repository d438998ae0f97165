"""A config from a file and the command line."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NoReturn, get_args, get_origin

from flaxformer_lite.base.remote_files import is_url, local_files
from flaxformer_lite.base.shipped_configs import shipped_configs
from flaxformer_lite.config.differences import flatten
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.options import apply_options
from flaxformer_lite.config.outside import import_python, mistakes_in
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.config.settings import variants_in, walk
from flaxformer_lite.core.base.suggest import suggest

HELP = """Trains the experiment of {path}. Each option changes one setting; its default is the value in the file.

The options below are those of the variants that the file has. `--optimizer.algorithm adafactor` takes another one, with its
default settings. All variants, the file's in brackets:
{variants}

A group that is None in the file, for example model.pooler, is set there too. `flaxformer-lite train --help` lists the options that
are no settings, such as --workdir. The groups below are data, train, optimizer, model, objective, decode and metrics.
"""


def load_config(path: str, overrides: Sequence[str] = ()) -> Config:
    """Returns the config of a file or a run folder, changed by options such as `--train.steps 100`.

    A `.py` file has a function `get_config()`. A `.json` file or a run folder may be at a URL. A name without folder and
    suffix, such as `quickstart`, is a config that comes with the package, unless such a file exists.

    Raises: ValueError for a mistake in the file or an option; SystemExit with status 0 after `--help`.
    """
    if is_url(path) and not path.endswith(".py"):
        config = config_at(path)
    else:
        file = found_file(path)
        text = file.read_bytes() if file.suffix == ".json" else to_json(run_config_file(file))
        config = from_json(text, path)
    if {"-h", "--help"} & {*overrides}:
        show_help(config, path)
    return apply_options(config, overrides) if overrides else config


def config_at(url: str) -> Config:
    """Returns the config of a `.json` file or a run folder at a URL. Raises: ValueError if it cannot be read."""
    folder, _, name = url.rstrip("/").rpartition("/")
    if not name.endswith(".json"):
        folder = url.rstrip("/")
        name = "config.json"
    with local_files(folder, [name]) as copy:
        if not (copy / name).is_file():
            raise ValueError(f"there is no config file {folder}/{name}: name a .json file, or the folder of a run")
        return from_json((copy / name).read_bytes(), f"{folder}/{name}")


def found_file(path: str) -> Path:
    """Returns a config file: the file at `path`, that of a run folder, or the one of this name that comes with the package.

    Raises: ValueError if no such file exists.
    """
    file = Path(path)
    shipped = shipped_configs()
    for candidate in (file, file / "config.json", shipped.get(path, file)):
        if candidate.is_file():
            return candidate
    folders = {file if file.is_dir() else file.parent, Path("configs")}
    configs = set[Path]().union(*(folder.glob("*.py") for folder in folders))
    names = sorted(str(config) for config in configs if config.stem not in ("__init__", "train"))
    near = "" if file.is_dir() else suggest(path, names) or suggest(file.stem, shipped)
    raise ValueError(f"there is no config file {path}" + (near or f"; there are {', '.join(names or shipped)}"))


def show_help(config: Config, path: str) -> NoReturn:
    """Prints every setting with its value and its meaning, as tyro writes them, and ends with status 0."""
    import tyro  # only for the help
    from tyro.constructors import PrimitiveTypeInfo, UnsupportedTypeAnnotationError

    variants = "\n".join(f"  {setting:<24} {', '.join(kinds)}" for setting, kinds in choices(config))
    registry = tyro.constructors.ConstructorRegistry()
    kinds = {value for setting, value in flatten(config).items() if setting.endswith(".kind")}

    @registry.primitive_rule
    def leave_out_kinds(info: PrimitiveTypeInfo) -> UnsupportedTypeAnnotationError | None:
        """Each kind has one choice, that of the file."""
        is_kind = get_origin(info.type) is Literal and {*get_args(info.type)} <= kinds
        return UnsupportedTypeAnnotationError(()) if is_kind else None

    tyro.cli(
        Config,
        default=dataclasses.replace(config, train=dataclasses.replace(config.train, hooks=())),  # no options
        args=["--help"],
        prog=f"flaxformer-lite train {path}",
        description=HELP.format(path=path, variants=variants),
        config=(tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed),
        registry=registry,
    )
    raise AssertionError


def choices(config: Config) -> Iterator[tuple[str, list[str]]]:
    """Yields every setting of a config that has several variants, and their kinds, that of the config in brackets."""
    for node in walk(config):
        kinds = variants_in(node.hint)
        chosen = getattr(node.value, "kind", None)
        if len(kinds) > 1:
            yield node.path, [f"[{kind}]" if kind == chosen else kind for kind in kinds]


def run_config_file(file: Path) -> Config:
    """Returns the result of the file's `get_config()`. Raises: ValueError with the line of the mistake."""
    module = import_python(file)
    with mistakes_in(file):
        config = module.get_config() if hasattr(module, "get_config") else None
    if not isinstance(config, Config):
        raise ValueError(
            f"{file} has no function get_config() that returns a Config: add `def get_config() -> Config: …`"
        )
    return config
