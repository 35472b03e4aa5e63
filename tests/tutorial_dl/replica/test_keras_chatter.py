"""TensorFlow's start-up messages, in new processes, since this one may have imported it."""

import os
import subprocess
import sys

import pytest

IMPORT = (
    "import os, sys\n"
    "from tutorial_dl.tensorflow_chatter import hide_tensorflow_chatter\n"
    "hide_tensorflow_chatter()\n"
    "{before}\n"
    "import keras, tensorflow as tf\n"
    "assert 'keras.wrappers' not in sys.modules\n"  # late_modules.py
    "assert keras.wrappers.SKLearnClassifier.__module__.startswith('keras.src.wrappers')\n"
    "from keras.visualization import draw_bounding_boxes\n"
    "from keras.wrappers import SKLearnClassifier\n"
    "assert SKLearnClassifier is keras.wrappers.SKLearnClassifier\n"
    "assert sys.modules['keras.wrappers'] is keras.wrappers\n"
    "sys.stdout.write(str(int(tf.constant(1) + 1)))\n"
    "os.write(2, b'later: I0000 stays\\n')\n"
)


def run_import(module, does, **environment):
    """Import TensorFlow in a new process, which runs `does` when it comes to `module`."""
    before = (
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        f"            {does}\n"
        "sys.meta_path.insert(0, Hook())\n"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "", **environment}
    if not environment["TF_CPP_MIN_LOG_LEVEL"]:
        del environment["TF_CPP_MIN_LOG_LEVEL"]
    return subprocess.run(
        [sys.executable, "-c", IMPORT.format(before=before)],
        capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip


@pytest.mark.thorough
def test_start_up_chatter_is_hidden_and_nothing_else():
    """Other output to stderr during TensorFlow's import is shown, in order."""
    writes = "os.write(2, b'a real error\\nE0000 00:00:1.5 7 x.cc:1] another\\n')"
    done = run_import("tensorflow.python", writes)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2"
    assert done.stderr.splitlines() == [
        "a real error",
        "E0000 00:00:1.5 7 x.cc:1] another",
        "later: I0000 stays",
    ]


def test_chatter_is_shown_on_request():
    # TensorFlow writes this when it loads its libraries. The rest takes seconds and is not needed.
    done = run_import("tensorflow.python.ops", "raise SystemExit", TF_CPP_MIN_LOG_LEVEL="0")
    assert done.returncode == 0 and not done.stdout
    assert "absl::InitializeLog" in done.stderr


def test_a_failing_import_of_tensorflow_shows_its_error():
    """The user sees the exception and what was written to stderr before it."""
    fails = "os.write(2, b'the reason\\n'); raise ImportError('broken')"
    done = run_import("tensorflow.python", fails)
    assert done.returncode == 1
    assert "the reason" in done.stderr and "ImportError: broken" in done.stderr
