"""The folder of the user's where JAX keeps compiled programs for the next process."""

import os
from collections.abc import MutableMapping

from flaxformer_lite.base.hardware import cpu_kind
from flaxformer_lite.base.remote_files import cache_root

BY_DEFAULT = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 1.0,
    "jax_compilation_cache_max_size": -1,
}
"""JAX's own values of the settings that `keep_programs` makes."""


def keep_programs(environment: MutableMapping[str, str]) -> None:
    """Sets a folder of the user's where JAX keeps compiled programs for the next start, and the seconds from which one is kept.

    JAX reads them when it is imported. Each kind of CPU has its own folder, since a program for one may not run on another. JAX
    removes what was not used longest; several processes may share the folder. A folder in `JAX_COMPILATION_CACHE_DIR` stays,
    without a limit to its size. `JAX_ENABLE_COMPILATION_CACHE=0` keeps none.
    """
    environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")  # JAX itself says 1
    if "JAX_COMPILATION_CACHE_DIR" in environment:
        return
    folder = cache_root() / "programs" / cpu_kind()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        environment["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        environment.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**31))  # bytes, for each kind of CPU


def keep_programs_of_python() -> None:
    """Does the same for a process that has imported JAX, unless its user has named a folder, to JAX or in the environment."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    settings = dict(os.environ)
    keep_programs(settings)
    for name, value in BY_DEFAULT.items():
        if getattr(jax.config, name) == value and name.upper() in settings:
            jax.config.update(name, type(value or "")(settings[name.upper()]))
    compilation_cache.reset_cache()  # JAX looks for the folder once, at the first program
