"""Devices: the mesh, and the part of each array that a device holds.

`sharding` has the one table of shardings; `mesh` lays the devices out and divides the rows of a batch over them; `compiler` has the
options of their compilers.
"""

from flaxformer_lite.core.parallel.compiler import CompilerOptions
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.core.parallel.sharding import (
    MESH_AXES,
    batch_sharding,
    parameter_sharding,
    replicated,
    state_sharding,
)

__all__ = [
    "MESH_AXES",
    "CompilerOptions",
    "MeshConfig",
    "batch_sharding",
    "make_mesh",
    "parameter_sharding",
    "replicated",
    "state_sharding",
]
