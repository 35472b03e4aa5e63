"""A page per command, with all its options, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .docstrings import escaped, markdown


def pages(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """(words of the command line, its page) of a click command and all below it.

    Args:
        command: The click command.
        words: How it is called, such as ("python -m tutorial_dl", "train").
    """
    with command.make_context(words[-1], [], resilient_parsing=True) as context:
        below = getattr(command, "commands", {})
        shown = {name: one for name, one in below.items() if not one.hidden}
        yield words, _page(command, context, words, shown)
    for name, one in shown.items():
        yield from pages(one, (*words, name))


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


def _page(command: Any, context: Any, words: tuple[str, ...], below: dict) -> str:
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
    program = f"```{{program}} {whole.removeprefix('python -m ')}\n```"
    for panel, entries in panels.items():
        pieces += [f"## {panel}", program, "\n\n".join(entries)]
    return "\n\n".join(filter(None, pieces)) + "\n"


def _option(left: str, right: str) -> str:
    """An option's entry, from the two columns of `--help`."""
    names = ", ".join(part.strip() for part in re.split(r",| / |;", left))
    return f"::::{{option}} {names}\n{escaped(right)}\n::::"
