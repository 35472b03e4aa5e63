"""Tables of a cluster's engines, and of all clusters: aligned text, and HTML for notebooks.

The HTML fits JupyterLab's light and dark theme. It has no script: a notebook that is opened again
shows it as it was.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

# Colours of text: for a light and for a dark page. Each has a contrast of 4.5 or more with every
# background that a table has in JupyterLab's themes. A colour never says more than the words do.
COLOURS = {
    "busy": ("#17541c", "#81c995"),
    "waiting": ("#0d47a1", "#9ecbff"),
    "idle": ("#444444", "#c4c4c4"),
    "bad": ("#a31515", "#ffb4ab"),
    "odd": ("#763c00", "#ffc46b"),
}


def _variables(which: int) -> str:
    return " ".join(f"--{name}: {pair[which]};" for name, pair in COLOURS.items())


STYLE = f"""
.tdl {{ {_variables(0)} overflow-x: auto; }}
body[data-jp-theme-light="false"] .tdl, body.vscode-dark .tdl {{ {_variables(1)} }}
.tdl table {{ margin: 4px 0; }}
.tdl th, .tdl td {{ text-align: left !important; white-space: nowrap; vertical-align: top; }}
.tdl th {{ white-space: normal; vertical-align: bottom; }}
.tdl td.words {{ white-space: normal; min-width: 10em; max-width: 26em; }}
.tdl code {{ color: inherit; background: none !important; padding: 0 !important; }}
.tdl code {{ white-space: normal; overflow-wrap: anywhere; }}
.tdl .note {{ color: var(--idle); }}
{" ".join(f".tdl .{name} {{ color: var(--{name}); font-weight: 600; }}" for name in COLOURS)}
.tdl .bar {{ display: flex; width: 9em; height: 0.8em; margin-top: 0.2em; color: var(--idle);
  border: 1px solid; }}
.tdl .bar i:nth-child(1) {{ background: var(--busy); }}
.tdl .bar i:nth-child(2) {{ background: repeating-linear-gradient(
  45deg, var(--odd) 0 2px, transparent 2px 4px); }}
"""


def text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns."""
    table = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, each, widths)).rstrip() for each in table]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in HTML; `rows` have whole cells, made by `cell`."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"


def cell(words: str, kind: str = "", code: bool = False) -> str:
    """A cell in HTML; `kind`: a colour; `code`: it is source code."""
    inner = html.escape(words)
    inner = f"<code>{inner}</code>" if code and words else inner
    inner = f'<span class="{kind}">{inner}</span>' if kind else inner
    return f'<td class="words">{inner}</td>' if kind or code else f"<td>{inner}</td>"


def bar(shares: Sequence[float], names: Sequence[str]) -> str:
    """A cell with fractions as a bar (solid, hatched, empty) and in words below it."""
    if not shares:
        return "<td></td>"
    words = in_percent(shares)
    title = ", ".join(f"{name} {word}" for name, word in zip(names, words, strict=True))
    parts = "".join(f'<i style="width:{100 * share:.0f}%"></i>' for share in shares)
    bars = f'<div class="bar" role="img" title="{title}" aria-label="{title}">{parts}</div>'
    return f"<td>{bars}{' / '.join(words)}</td>"


def in_percent(shares: Sequence[float]) -> list[str]:
    return [f"{100 * share:.0f}%" for share in shares]


def page(*parts: str, style: str = "") -> str:
    return f'<style>{STYLE}{style}</style><div class="tdl">{"".join(parts)}</div>'
