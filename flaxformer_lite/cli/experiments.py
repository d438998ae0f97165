"""The config and the mesh that a command is about, from its arguments."""

import re
from collections.abc import Sequence
from pathlib import Path

from flaxformer_lite.base.shipped_configs import shipped_configs
from flaxformer_lite.config import Config, load_config
from flaxformer_lite.parallel import MESH_AXES, MeshConfig
from flaxformer_lite.workdir import open_run


def config_of(path: str, overrides: Sequence[str] = ()) -> Config:
    """Returns the config in a file, of a run folder, or with a name such as `quickstart`."""
    if path.endswith((".py", ".json")) or (path in shipped_configs() and not Path(path).is_dir()):
        return load_config(path, overrides)
    folder = open_run(path)
    folder.config()  # reports what is wrong if it is no run folder
    return load_config(str(folder.path / "config.json"), overrides)


def parse_mesh(text: str) -> MeshConfig:
    """Returns the mesh of a text such as `data=4,fsdp=2`. By default data has all remaining devices, unless another axis has -1.

    Raises: ValueError if the text is no mesh.
    """
    if not re.fullmatch(rf"({'|'.join(MESH_AXES)})=(-?\d+)(,({'|'.join(MESH_AXES)})=(-?\d+))*", text):
        raise ValueError(f"--mesh is {text!r}: give sizes of {', '.join(MESH_AXES)}, for example data=-1,fsdp=4")
    given = [(axis, int(size)) for axis, size in re.findall(r"(\w+)=(-?\d+)", text)]
    sizes = dict(given)
    if len(sizes) < len(given):
        raise ValueError(f"--mesh is {text!r}, which has an axis twice: give one size for each")
    return MeshConfig(**({"data": 1 if -1 in sizes.values() else -1} | sizes))
