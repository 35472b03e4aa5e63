"""Command lines in documents: whether they would be understood."""

from __future__ import annotations

import re
import shlex

import typer

FENCE = re.compile(r"^```(sh|bash|)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OURS = re.compile(r"(\$ )?(\w+=\S+ )*(python -m (tutorial_dl|numba_kernels)|make|mpiexec|srun)\b")


def commands(text: str) -> list[str]:
    """The lines of shell in a Markdown text; a line that ends in a backslash has its next one.

    Of a block whose language is not said, those that begin with a command of the project.
    """
    found = []
    for language, block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.partition(" #")[0].strip()
            if line and (language or OURS.match(line)):
                found.append(line.removeprefix("$ "))
    return found


def wrong(line: str, targets: set[str]) -> str:
    """What is wrong with a command line of the project; "" if it is right, or not the project's.

    targets: of the Makefile.
    """
    words = shlex.split(line)
    if words[0] == "make":
        unknown = [word for word in words[1:] if "=" not in word and word not in targets]
        return f"make has no target {unknown[0]}" if unknown else ""
    package = next((word for word in words if word in ("tutorial_dl", "benchmarks")), None)
    if package:
        if package == "benchmarks":
            from benchmarks.__main__ import app
        else:
            from tutorial_dl.cli.commands import app
        try:
            parse(typer.main.get_command(app), words[words.index(package) + 1 :])
        except Exception as error:  # of typer's own copy of click, or of click
            said = getattr(error, "message", None) or repr(error)
            # A file that a text names is there only where the text's commands are run
            return "" if said.startswith("cannot read") and "No such file" in said else said
    return ""


def parse(command, words: list[str]) -> None:
    """Parse the words as typer would, without running anything."""
    with command.make_context("tutorial_dl", list(words)) as context:
        if hasattr(command, "resolve_command"):  # it has commands below it
            _, below, rest = command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
            parse(below, rest)
