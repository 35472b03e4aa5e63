"""Which exercises are solved, by what the learner's own notebooks have kept; copies without it.

`check` prints "correct: ..." below its cell, and JupyterLab saves that with the notebook. Nothing
else is recorded: whoever shares a folder of notebooks shares what its checks have said.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

CHECK = re.compile(r'check\("(\d\d)\.(\w+)"')


def passed(folder: Path) -> dict[tuple[str, str], bool]:
    """(Number of a notebook, exercise) -> whether its cell says that it is right."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    found = {}
    for file in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        try:
            cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        except (ValueError, KeyError):
            raise ValueError(f"{file} is no notebook; save it again in JupyterLab") from None
        for cell in cells:
            if cell["cell_type"] == "code":
                right = "correct: " in json.dumps(cell["outputs"])
                found |= dict.fromkeys(CHECK.findall("".join(cell["source"])), right)
    return found


def table(files: Sequence[Path], folders: Sequence[Path]) -> str:
    """What is solved in a learner's folder, or in each of several; `files` are the course's own."""
    course = [one for folder in {file.parent for file in files} for one in passed(folder)]
    found = {folder.name: passed(folder) for folder in folders}
    return of_class(course, found) if len(found) > 1 else of_one(course, *found.values())


def of_one(course: Sequence[tuple[str, str]], solved: Mapping[tuple[str, str], bool]) -> str:
    """A line per notebook that has been begun, and a sum."""
    lines = []
    for number in sorted({number for number, _ in course}):
        names = [name for one, name in course if one == number]
        marks = [f"{name}{' ok' if solved.get((number, name)) else ''}" for name in names]
        if any(solved.get((number, name)) for name in names):
            lines.append(f"{number}  {', '.join(marks)}")
    return "\n".join([*lines, f"{sum(solved.get(one, False) for one in course)} of {len(course)}"])


def of_class(
    course: Sequence[tuple[str, str]], learners: Mapping[str, Mapping[tuple[str, str], bool]]
) -> str:
    """A row per learner: how many exercises of each notebook are solved, and of all."""
    solved = {name: [one for one in course if found.get(one)] for name, found in learners.items()}
    numbers = sorted({number for ones in solved.values() for number, _ in ones})
    width = max(map(len, [*learners, "learner"]))
    lines = ["  ".join([f"{'learner':{width}}", *numbers, f"of {len(course)}"])]
    for name, ones in solved.items():
        counts = [sum(number == one for one, _ in ones) for number in numbers]
        marks = [f"{count or '.':>2}" for count in counts]
        lines.append("  ".join([f"{name:{width}}", *marks, str(len(ones))]))
    return "\n".join(lines)


def without_outputs(file: Path) -> str:
    """A notebook's text; a learner guesses before looking, so what it has shown is left out."""
    text = file.read_text(encoding="utf-8")
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell.get("outputs"):
            cell["outputs"] = []
    same = notebook == json.loads(text)
    return text if same else json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
