"""Exercises that need no cluster: how their cells run, and how checks answer."""

from __future__ import annotations

from tutorial_dl.course.exercises import check


def run(code: str, names: dict) -> dict:
    """Run a cell's code with the `names` defined before it; returns all names."""
    names = {"check": check, "__name__": "cell"} | names
    exec(compile(code, "cell", "exec"), names)
    return names


def one_line(capsys, beginning: str) -> str:
    """The printed text, which must be one line with this beginning."""
    said = capsys.readouterr().out
    assert said.startswith(beginning) and said.count("\n") == 1, said
    return said


def says(capsys, exercise: str, answer) -> str:
    """The line that tells a learner why an answer is wrong."""
    assert check(exercise, answer) is False
    return one_line(capsys, "not yet: ")
