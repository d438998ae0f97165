"""Law: every module can be imported where the system has neither the modules nor the names that only POSIX has.

Those that need an extra which is not installed are left out.
"""

import subprocess
import sys

from tests.support.paths import ROOT

AS_ON_WINDOWS = """
import importlib, os, pkgutil, signal, sys, types
import flaxformer_lite

names = [module.name for module in pkgutil.walk_packages(flaxformer_lite.__path__, "flaxformer_lite.")]
number = len(names)
names = [name for name in names if not name.endswith("__main__")]
for name in list(names):  # once as it is: the libraries that it needs are then there
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] in ("starlette", "uvicorn", "prometheus_client", "lm_eval"), error
        names.remove(name)
for name in ["flaxformer_lite", *names]:
    del sys.modules[name]
for name in ("fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "setitimer", "pthread_kill"):
    delattr(signal, name)
for name in ("fork", "forkpty", "geteuid", "getuid", "getpgid", "killpg", "mkfifo", "setsid", "sched_getaffinity", "uname"):
    delattr(os, name)
sys.platform, sys.modules["msvcrt"] = "win32", types.ModuleType("msvcrt")
for name in names:
    importlib.import_module(name)
print(number)
"""


def test_every_module_can_be_imported_on_windows():
    found = subprocess.run([sys.executable, "-c", AS_ON_WINDOWS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    modules = [path for path in (ROOT / "flaxformer_lite").rglob("*.py") if path.stem not in ("__init__", "__main__")]
    assert int(found.stdout) > len(modules)  # with the faces of the rooms
