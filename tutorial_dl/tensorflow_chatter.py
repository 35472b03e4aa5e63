"""Hide TensorFlow's start-up notices, and nothing else.

TensorFlow writes notices to stderr while it is imported (processor features, oneDNN, "All log
messages before absl::InitializeLog()"), from C++ and so early that its own log level does not stop
all of them; on 4 ranks they appear four times. Our own imports of TensorFlow are therefore
`with quiet():`, which captures stderr and then passes on every line that is not one of these
notices. `hide_tensorflow_chatter` does the same to the next import by anyone (a user's file).
"""

import faulthandler
import importlib.abc
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from .late_modules import light

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
CHATTER = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|I\d{4} [\d:.]+ +\d+ \w+\.cc:\d+\] "  # absl's lines of severity Information
    rb"|\d{4}-\d\d-\d\d [\d:.]+: I \S+\.cc:\d+\] "  # the same in TensorFlow's own format
    rb"|To enable the following instructions: "  # second line of one of these
    rb"|W\d{4} [\d:.]+ +\d+ op_kernel\.cc:\d+\] OP_REQUIRES failed"  # becomes an exception
    rb"|W\d{4} [\d:.]+ +\d+ local_rendezvous\.cc:\d+\] Local rendezvous is aborting"  # so does this
    rb"|\s+\[\[\{\{node "  # second line of it
    rb"|The op is created at: |File \"|\ttf2xla conversion failed "  # further lines of the first
    # For masks and whole numbers, which TensorFlow then computes by other code
    rb"|E\d{4} [\d:.]+ +\d+ util\.cc:\d+\] oneDNN supports DT_(BOOL|INT32) only on platforms"
    # An attempt to fuse a convolution with what follows, which the GAN of showers meets; the graph
    # stays as it was
    rb"|E\d{4} [\d:.]+ +\d+ meta_optimizer\.cc:\d+\] remapper failed: INVALID_ARGUMENT: Mutation::"
)


@contextmanager
def chatter_hidden() -> Iterator[None]:
    """Capture what arrives at file descriptor 2; at the end, pass on all but `CHATTER`."""
    sys.stderr.flush()
    stderr = os.dup(2)
    # If TensorFlow crashes the process (built for another processor), this is still shown.
    was_enabled = faulthandler.is_enabled()
    if not was_enabled:
        faulthandler.enable(file=stderr)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            if not was_enabled:
                faulthandler.disable()
            aside.seek(0)
            for line in aside:
                if not CHATTER.match(line):
                    os.write(2, line)
            os.close(stderr)


@contextmanager
def quiet() -> Iterator[None]:
    """Around `import tensorflow`: hides its notices, and leaves the process as it was.

    TensorFlow's log level is 2 meanwhile (errors only) unless the user has set it; 0 shows all. It
    imports half of what it imports otherwise (late_modules.py).
    """
    before = os.environ.get(LEVEL)
    os.environ.setdefault(LEVEL, "2")
    try:
        with light(), chatter_hidden() if before != "0" else nullcontext():
            yield
    finally:
        if before is None:
            del os.environ[LEVEL]


class _Finder(importlib.abc.MetaPathFinder):
    """Runs before Python's own finders: lets them find TensorFlow, and wraps its loading."""

    def find_spec(self, name, path=None, target=None):
        if name not in ("tensorflow", "keras"):  # Keras imports TensorFlow
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                with quiet():
                    load(module)

            spec.loader.exec_module = exec_module
        return spec


def hide_tensorflow_chatter() -> None:
    """Call this before anything that may import TensorFlow; does nothing if it is imported."""
    known = any(isinstance(finder, _Finder) for finder in sys.meta_path)
    if "tensorflow" not in sys.modules and not known:
        sys.meta_path.insert(0, _Finder())
