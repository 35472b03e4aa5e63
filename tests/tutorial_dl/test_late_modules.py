"""late_modules.py, with packages named keras that are built as several versions of Keras may be."""

import subprocess
import sys
from pathlib import Path

import pytest

from tutorial_dl import late_modules

ROOT = str(Path(late_modules.__file__).parents[1])
AS_NOW = {
    "__init__": "from keras import src, visualization, wrappers\nimport json\nversion = 1",
    "src.__init__": "from keras.src import visualization",
    "src.visualization.__init__": "from keras.src.visualization import boxes",
    "src.visualization.boxes": "draw = 1",
    "visualization.__init__": "from keras.src.visualization.boxes import draw",
    "wrappers.__init__": "class Classifier: pass",
}
WITHOUT = {"__init__": "from keras import src\nversion = 1", "src.__init__": ""}
# Parts of these versions need what is otherwise imported later.
NEEDS = AS_NOW | {"__init__": "from keras.wrappers import Classifier\n" + AS_NOW["__init__"]}
NEEDS_BELOW = AS_NOW | {"src.__init__": "import keras.src.visualization.boxes"}
FAILS = AS_NOW | {"__init__": "from keras import src, wrappers\nraise OSError('broken')"}

IMPORT = """
import gc, pickle, sys
from tutorial_dl.late_modules import Later, light
def parts():
    return sorted(set(sys.modules) & {"keras.wrappers", "keras.visualization",
                                      "keras.src.visualization"})
def no_stand_in():
    assert gc.isenabled() and not any(isinstance(each, Later) for each in sys.modules.values())
"""
USE = """
no_stand_in()
assert keras.wrappers.Classifier.__module__ == "keras.wrappers", keras.wrappers
assert keras.src.visualization.boxes.draw == keras.visualization.draw == 1
assert not isinstance(keras.wrappers, Later) and keras.wrappers is sys.modules["keras.wrappers"]
assert type(pickle.loads(pickle.dumps(keras.wrappers.Classifier()))) is keras.wrappers.Classifier
"""
LIGHT = "with light():\n    import keras\n    assert not gc.isenabled()\n"
CASES = {
    "used as attributes": (AS_NOW, LIGHT + "assert not parts(), parts()" + USE),
    "imported by name": (AS_NOW, LIGHT + "from keras.wrappers import Classifier" + USE),
    "imported below": (AS_NOW, LIGHT + "from keras.src.visualization.boxes import draw" + USE),
    "listed": (AS_NOW, LIGHT + "assert 'Classifier' in dir(keras.wrappers)" + USE),
    "pickled by name": (AS_NOW, LIGHT + "pickle.loads(b'ckeras.wrappers\\nClassifier\\n.')" + USE),
    "imported before": (AS_NOW, "import keras\nhere = parts()\nwith light():\n    import keras\n"
                                "    assert gc.isenabled()\nassert len(parts()) == 3" + USE),
    "twice": (AS_NOW, LIGHT + LIGHT.replace("not ", "") + USE),
    "without": (WITHOUT, LIGHT + "no_stand_in()\ntry:\n    import keras.wrappers\n"
                                 "except ModuleNotFoundError: pass\nelse: assert False"),
    "needs": (NEEDS, LIGHT + "assert 'keras.wrappers' in parts()" + USE),
    "needs below": (NEEDS_BELOW, LIGHT + "assert 'keras.src.visualization' in parts()" + USE),
    "fails": (FAILS, "try:\n    with light():\n        import keras\nexcept OSError: pass\n"
                     "else: assert False\nno_stand_in()\nassert not parts(), parts()"),
    "collection is off": (AS_NOW, "gc.disable()\n" + LIGHT + "assert not gc.isenabled()\n"
                                  "gc.enable()" + USE),
    "no keras": ({}, "sys.path.clear()\nwith light(): pass\nno_stand_in()"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_parts_of_keras_are_imported_when_they_are_used(tmp_path: Path, case):
    files, program = CASES[case]
    for name, text in files.items():
        file = tmp_path.joinpath("keras", *name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    path = f"import sys\nsys.path[:0] = [{ROOT!r}, {str(tmp_path)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", path + IMPORT + program], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
