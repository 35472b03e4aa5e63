"""Finds what a test's function has changed in its process; a changed rank serves no other test.

Tests need not help. A change is: functions and tables of our packages that differ from before,
teams that live, a world that failed, threads, signal handlers, limits.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
from importlib.machinery import PathFinder

import asleep
from modules import OF_THE_TEST

PACKAGES = ("numba_kernels", "tutorial_dl")
OTHERS = ("os", "time")  # modules whose functions tests replace
TABLES = (dict, list, set)
# Values that are set once, at their first use, and a number that only counts up.
ONCE = {
    ("numba_kernels.team.world", "_world"),
    ("numba_kernels.trace.recording", "_last_ring"),
    *(("numba_kernels.jit.compiling", name) for name in ("after", "tell", "told")),
    ("tutorial_dl.replica.keras.collectives", "_order"),
    ("tutorial_dl.interop.horovod.basics", "_made"),
    ("time", "tzname"),  # equal, but made anew by what reads the local time zone
}
# Caches of constant answers, and memory that is used again.
KEPT = {
    ("numba_kernels.allreduce.dispatch", "_SEEN"),
    ("numba_kernels.team.regrouping", "_left_behind"),
    ("numba_kernels.team.failure", "ended"),
    ("numba_kernels.team.short_traceback", "met"),
    ("tutorial_dl.interop.horovod.elastic.keras", "_iterators"),
    ("tutorial_dl.replica.keras.collectives", "_kept"),
}
# Variables that TensorFlow and its dependencies set once.
TENSORFLOWS = ("TF_", "TF2_", "TPU_", "KMP_", "HDF5_PLUGIN_PATH", "ENABLE_RUNTIME_UPTIME_TELEMETRY")
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
RECOVERY_SECONDS = 60.0
FIXED = {signal.SIGKILL, signal.SIGSTOP}


loaded: dict[str, dict] = {}  # the contents of modules when they were loaded


class Noted(PathFinder):
    """Loads our modules as usual, and notes their contents before a test can change them."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if name.split(".")[0] in PACKAGES else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def noted(module):
                execute(module)
                if name == asleep.WINDOWS:
                    asleep.let_teams_sleep(module)
                loaded[name] = contents(module)

            spec.loader.exec_module = noted
        return spec


def note_what_is_loaded() -> None:
    if Noted not in sys.meta_path:  # a forked rank has it already
        sys.meta_path.insert(0, Noted)


class Before:
    """The state of this process before a call."""

    def __init__(self):
        self.modules = {name: contents(module) for name, module in ours()}
        self.threads = set(threading.enumerate())
        self.process = of_the_process()

    def changes(self) -> list[str]:
        """Descriptions of what has changed since."""
        found = [*self._patched(), *teams()]
        now = of_the_process()
        found += [what for what, value in self.process.items() if now[what] != value]
        for thread in set(threading.enumerate()) - self.threads - of_libraries():
            thread.join(0.2)
            found += [f"thread {thread.name}"] if thread.is_alive() else []
        return found

    def _patched(self) -> list[str]:
        found = []
        for name, module in ours():
            now, before = contents(module), self.modules.get(name)
            if before is None:
                before = loaded.get(name, now)
            for at in now.keys() | before.keys():
                value = now.get(at)
                part = value is not None and sys.modules.get(f"{name}.{at}") is value
                # lazy-loader adds a name to a package when the name is first used.
                lazy = at not in before and at in getattr(module, "__all__", ())
                same = value is before.get(at) or part or lazy
                if not same and (name, at) not in ONCE:
                    found.append(f"{name}.{at}")
        return found


def ours() -> list[tuple[str, object]]:
    return [
        (n, m)
        for n, m in list(sys.modules.items())
        if m and (n.split(".")[0] in PACKAGES or n in OTHERS)
    ]


def contents(module) -> dict[object, object]:
    """The values of the module's names, and the contents of its tables and classes."""
    found: dict[object, object] = {}
    for name, value in list(vars(module).items()):
        if name.startswith("__") or (module.__name__, name) in KEPT:
            continue
        found[name] = value
        inside: dict = {}
        if isinstance(value, dict):
            inside = dict(value)
        elif isinstance(value, list):
            inside = dict(enumerate(value))
        elif isinstance(value, set):
            inside = {item: item for item in value}
        elif isinstance(value, type) and value.__module__ == module.__name__:
            inside = {n: v for n, v in vars(value).items() if not n.startswith("__")}
        found |= {(name, at): item for at, item in inside.items()}
    return found


def of_libraries() -> set[threading.Thread]:
    """Threads of progress bars, which sleep until the process ends."""
    return {thread for thread in threading.enumerate() if thread.name == "tqdm_monitor"}


def of_the_test(value) -> bool:
    return getattr(value, "__module__", "") == OF_THE_TEST


def world():
    """The world that teams are made from; None if there is none."""
    made = getattr(sys.modules.get("numba_kernels.team.world"), "_world", None)
    return made if made is not None and made.letters is not None else None


def failed() -> bool | None:
    """Whether the world has failed; None if there is none."""
    return None if world() is None else bool(world().failure or world().letters.failures)


def recover() -> None:
    """Make a world that has failed usable again. Collective; a rank need not have noticed it."""
    from numba_kernels.team import recovery

    if world().failure is None:
        world().abort(RuntimeError("another rank of this test has failed"))
    recovery.recover(world(), RECOVERY_SECONDS)


def teams() -> list[str]:
    """Teams that still live, and whether the world that they are made from has failed."""
    live = getattr(sys.modules.get("numba_kernels.team.failure"), "live", ())
    found = [f"a team: {team!r}" for team in list(live) if team is not world()]
    return [*found, "the world has failed"] if failed() else found


def of_the_process() -> dict[str, object]:
    handlers = {n: signal.getsignal(n) for n in signal.valid_signals() - FIXED}
    return {
        "the environment": {k: v for k, v in os.environ.items() if not k.startswith(TENSORFLOWS)},
        "the folder": os.getcwd(),
        "the processors": getattr(os, "sched_getaffinity", lambda _: 0)(0),
        "signal handlers": handlers,
        "limits": [resource.getrlimit(which) for which in LIMITS],
        "sys.excepthook": of_the_test(sys.excepthook),
        "modules that are hidden": {name for name, module in sys.modules.items() if not module},
        "tracing": (sys.gettrace(), sys.getprofile()),
        "Keras's settings": of_keras(),
    }


def of_keras() -> tuple:
    """Keras's settings for the whole process, or its defaults if it is not loaded."""
    keras, tensorflow = sys.modules.get("keras"), sys.modules.get("tensorflow")
    if keras is None or tensorflow is None:
        return "float32", "float32", "channels_last", False
    config = keras.config
    eagerly = tensorflow.config.functions_run_eagerly()
    return config.floatx(), config.dtype_policy().name, config.image_data_format(), eagerly


def children() -> list[str]:
    """Running processes that this one has started."""
    import psutil

    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(f"process {child.pid} ({' '.join(child.cmdline())[:200]})")
        except psutil.NoSuchProcess:
            continue
    return found
