"""How long each notebook takes a learner: writes it to the end of README.md, and to the notebooks.

    python notebooks/minutes.py              counts words, cells and exercises anew
    python notebooks/minutes.py FOLDER       takes running times from notebooks that were run there
                                             (python -m tutorial_dl notebooks run --out FOLDER)

Reading is the words of the text at 130 a minute (without solutions and notes for instructors, which
are folded away), and a minute per code cell. Running is the time of the cells. An exercise takes 6
minutes if a number is asked for, 12 if it is a function, 20 if it is a model of one's own.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from math import ceil
from pathlib import Path

FOLDER = Path(__file__).parent
README = FOLDER / "README.md"
WORDS, CELL, NUMBER, FUNCTION, OWN = 130, 1, 6, 12, 20  # a minute; minutes each
CORE = {*range(1, 7), 8, 9, 10, 11, 13, 16, 23, 27, 28, 29, 35}  # numbers
ALGORITHM = {  # the cell in which the algorithm's own lines stand
    "01": "by-hand", "02": "replica", "03": "by-hand", "04": "by-hand", "05": "by-hand",
    "06": "hand", "07": "adam", "08": "deadlock", "09": "bound", "10": "ranks", "11": "by-hand",
    "12": "same-by-package", "13": "by-hand", "14": "by-hand", "15": "relay", "16": "ranks",
    "17": "interpreter", "18": "by-hand", "19": "train", "20": "by-hand", "21": "by-hand",
    "22": "separations", "23": "by-hand", "24": "generation", "25": "split-measure",
    "26": "loop", "27": "epoch", "28": "order", "29": "recompute", "30": "by-hand", "31": "by-hand",
    "32": "crossover", "33": "by-hand", "34": "layer", "35": "own-rule",
}  # fmt: skip
HEAD = "| notebook | | reading | running | exercises | minutes | its algorithm in cell |\n"
TIME = re.compile(r"\*\*Time\*\*: \d+ minutes")
ROW = re.compile(r"^\| (\d\d) \| \w+ \| \d+ \| (\d+) \|", re.MULTILINE)


def read(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"text": "".join(cell["source"])} for cell in cells]


def reading(cells: list[dict]) -> float:
    """Minutes to read the text and the code."""
    minutes = 0.0
    for cell in cells:
        if cell["cell_type"] == "markdown":
            text = re.sub(r"<details>.*?</details>", "", cell["text"], flags=re.DOTALL)
            minutes += len(text.split()) / WORDS
        elif "check(" not in cell["text"] and cell["id"] not in ("stop", "mine"):
            minutes += CELL
    return minutes


def exercises(cells: list[dict]) -> int:
    """Minutes to solve them."""
    asked = [cell["text"] for cell in cells if cell["cell_type"] == "code"]
    asked = [text for text in asked if 'check("' in text and not text.startswith("%px ")]
    own = OWN * any(cell["id"] == "mine" for cell in cells)
    return own + sum(NUMBER if "= ..." in text else FUNCTION for text in asked)


def running(cells: list[dict]) -> float:
    """Seconds of all cells, by the times that were recorded when they ran."""
    seconds = 0.0
    for cell in cells:
        when = cell["metadata"].get("execution", {})
        ends = [when.get(name) for name in ("iopub.execute_input", "iopub.status.idle")]
        if all(ends):
            begin, end = (datetime.fromisoformat(one.replace("Z", "+00:00")) for one in ends)
            seconds += (end - begin).total_seconds()
    return seconds


def minutes(path: Path, run: dict[str, int]) -> tuple[int, int, int]:
    """Minutes for reading, running and exercises. `run`: of running, by the notebook's number."""
    cells = read(path)
    return ceil(reading(cells)), run.get(path.name[:2], 1), exercises(cells)


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))


def table(run: dict[str, int]) -> str:
    lines, totals = [HEAD, "|---|---|---|---|---|---|---|\n"], {"core": 0, "elective": 0}
    for path in notebooks():
        number, parts = path.name[:2], minutes(path, run)
        kind = "core" if int(number) in CORE else "elective"
        totals[kind] += sum(parts)
        text = " | ".join(map(str, (*parts, sum(parts))))
        lines.append(f"| {number} | {kind} | {text} | `{ALGORITHM[number]}` |\n")
    hours = " and ".join(f"{minutes / 60:.1f} hours {kind}" for kind, minutes in totals.items())
    return "".join(lines) + f"\nTogether: {hours}.\n"


def written(readme: str, run: dict[str, int]) -> str:
    """README.md with the table made anew."""
    return readme.partition(HEAD)[0] + table(run)


def main(folder: str | None = None) -> None:
    readme = README.read_text(encoding="utf-8")
    run = {number: int(minutes) for number, minutes in ROW.findall(readme)}
    for path in sorted(Path(folder).glob("[0-9][0-9]_*.ipynb")) if folder else ():
        run[path.name[:2]] = ceil(running(read(path)) / 60)
    README.write_text(written(readme, run), encoding="utf-8")
    for path in notebooks():
        text = path.read_text(encoding="utf-8")
        path.write_text(TIME.sub(f"**Time**: {sum(minutes(path, run))} minutes", text, count=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
