"""A page per command, with all its options, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from docstrings import escaped, markdown

LINES = 3  # command lines on a page
LINE = re.compile(r"^(?:\$ )?((?:mpiexec .*)?python -m tutorial_dl \S.*)$", re.MULTILINE)


def pages(
    command: Any, words: tuple[str, ...], lines: Mapping[str, str] | None = None
) -> Iterator[tuple[tuple[str, ...], str]]:
    """(words of the command line, its page) of a click command and all below it.

    Args:
        command: The click command.
        words: How it is called, such as ("python -m tutorial_dl", "train").
        lines: Command lines of other pages, of which some are shown: line -> link to its page.
    """
    lines = lines or {}
    with command.make_context(words[-1], [], resilient_parsing=True) as context:
        below = getattr(command, "commands", {})
        shown = {name: one for name, one in below.items() if not one.hidden}
        yield words, _page(command, context, words, shown, _lines_of(words, lines))
    for name, one in shown.items():
        yield from pages(one, (*words, name), lines)


def name_of(words: tuple[str, ...]) -> str:
    """The page's name below `commands/`."""
    return "-".join([re.split(r"[ .]", words[0])[-1], *words[1:]])


def about(command: Any, words: tuple[str, ...]) -> str:
    """The first sentence of the help of a command below `command`."""
    for word in words[1:]:
        command = command.commands[word]
    return escaped(command.get_short_help_str(200))


def options(command: Any) -> list[str]:
    """All long options of a command, as "--batch-size"."""
    words = [word for one in command.params for word in (*one.opts, *one.secondary_opts)]
    return [word for word in words if word.startswith("--")]


def lines_of(text: str) -> list[str]:
    """The command lines in the listings of a page, without prompts and comments."""
    found = LINE.findall(text.replace("\\\n", " "))
    return [" ".join(line.partition(" #")[0].split()) for line in found]


def _lines_of(words: tuple[str, ...], lines: Mapping[str, str]) -> dict[str, str]:
    """Those that call this command, with options; the shortest first, at most LINES."""
    start = f"{' '.join(words)} "
    shown = [line for line in lines if start in f"{line} " and len(words) > 1]
    return {line: lines[line] for line in sorted(shown, key=len)[:LINES]}


def _page(
    command: Any, context: Any, words: tuple[str, ...], below: dict, lines: Mapping[str, str]
) -> str:
    whole = " ".join(words)
    title = " ".join(words[1:]) or words[0]
    pieces = [f"# {title}", markdown(command.help)]
    usage = " ".join(command.collect_usage_pieces(context))
    pieces.append(f"```text\n{whole} {usage}\n```")
    if below:
        lines = [
            f"- [{name}]({name_of((*words, name))}.md): {escaped(one.get_short_help_str(200))}"
            for name, one in below.items()
        ]
        pieces.append("\n".join(lines))
        toctree = "\n".join(name_of((*words, name)) for name in below)
        pieces.append(f"```{{toctree}}\n:hidden:\n\n{toctree}\n```")
    panels: dict[str, list[str]] = {}
    for one in command.params:
        if getattr(one, "hidden", False):
            continue
        record = one.get_help_record(context)
        if one.param_type_name == "argument":
            left, right = record or (one.name.upper(), "")
            panels.setdefault("Arguments", []).append(f"- `{left}`: {escaped(right)}")
        elif record:
            panel = getattr(one, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(_option(*record))
    if lines and not below:
        listing = "\n".join(lines)
        where = ", ".join(dict.fromkeys(lines.values()))
        pieces.append(f"For example, from {where}:\n\n```sh\n{listing}\n```")
    program = f"```{{program}} {whole.removeprefix('python -m ')}\n```"
    for panel, entries in panels.items():
        pieces += [f"## {panel}", program, "\n\n".join(entries)]
    return "\n\n".join(filter(None, pieces)) + "\n"


def _option(left: str, right: str) -> str:
    """An option's entry, from the two columns of `--help`."""
    names = ", ".join(part.strip() for part in re.split(r",| / |;", left))
    return f"::::{{option}} {names}\n{escaped(right)}\n::::"
