"""How the output of a cell is laid out: like that of one program, each line with its rank's label.

    ranks 0-3: 100 samples                  equal output of several ranks is shown once
    rank 0:    loss 0.3                     then what this rank has printed more
    rank 1 stderr: a warning

Ranks come in order. What all ranks printed before their first figure comes before the first
figures, which form a grid, and so on; results of the last expression come last. Long output is cut.
"""

from __future__ import annotations

import base64
import html
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .cell_output import Part, Rich, Row, Text
from .rank_status import ranks

LINES, FEWEST = 100, 10  # lines shown of all output between two figures; of one rank, at least
SHOWN = 2_000  # characters of a line that are shown
COLOUR, RESET = re.compile(r"(\x1b\[([\d;:]*)m)"), "\x1b[0m"
LONGEST = 100  # characters of codes that switch colours on one after the other
IMAGES = ("image/png", "image/jpeg", "image/svg+xml")
WIDTH = 17  # of a figure in a grid, at least, in em
CAPTION = "font:var(--jp-code-font-size,13px) var(--jp-code-font-family,monospace)"


class Bundle(NamedTuple):
    """One output of a notebook's cell: data and metadata by MIME type."""

    data: dict
    metadata: dict = {}  # noqa: RUF012  (never changed)


class Shared(NamedTuple):
    """The lines of one rank, and the ranks that have printed its first lines: how many each."""

    rows: list[Row]
    partial: bool
    counts: dict[int, int]


def layout(output: Mapping[int, list[Part]], groupby: str = "order") -> list[Bundle]:
    """Lay out the output of ranks.

    Args:
        output: The parts by rank.
        groupby: "order": see above; "type": all text first, then all figures; "engine": one rank
            after the other, without folding.
    """
    if groupby == "engine":
        return [each for rank in sorted(output) for each in layout({rank: output[rank]})]
    page = _Page()
    texts: dict[int, dict[int, Text]] = defaultdict(dict)  # by place, then by rank
    rich: dict[int, dict[int, Rich]] = defaultdict(dict)
    results: dict[int, Rich] = {}
    for rank in sorted(output):
        place = 0
        for part in output[rank]:
            if isinstance(part, Rich) and part.result:
                results[rank] = part
            elif isinstance(part, Rich):
                rich[place][rank] = part
                place += 1
            else:
                said = texts[0 if groupby == "type" else place]
                before = said.get(rank, Text([]))
                said[rank] = Text(before.rows + part.rows, part.partial)
    for place in range(1 + max([*texts, *rich], default=-1)):
        page.text(texts[place])
        page.displays(rich[place])
    page.displays(results)
    return page.bundles()


class _Page:
    """The bundles so far, and the lines of text of the next one."""

    def __init__(self) -> None:
        self._bundles: list[Bundle] = []
        self._lines: list[tuple[str, str]] = []  # label, line
        self._label = ""  # of the last bundle, if it is a figure or the like

    def bundles(self) -> list[Bundle]:
        self._end_text()
        return self._bundles

    def _end_text(self) -> None:
        # Labels for stdout have a common width, so that the text stands in a column.
        plain = [len(label) for label, _ in self._lines if label[-7:] != "stderr:"]
        width = max(plain, default=0)
        lines = [f"{label:<{width}} {line}".rstrip() for label, line in self._lines]
        if lines:
            self._label = ""
            self._bundles.append(Bundle({"text/plain": "\n".join(lines)}))
        self._lines = []

    def text(self, texts: Mapping[int, Text]) -> None:
        """Add the lines that ranks have printed."""
        chains = fold(texts)
        most = max(FEWEST, LINES // max(1, len(chains)))
        for chain in sorted(chains, key=lambda chain: min(chain.counts)):
            self._lines += _labelled(chain, most)

    def displays(self, rich: Mapping[int, Rich]) -> None:
        """Add one display of each of these ranks."""
        groups: dict[str, list[int]] = {}  # ranks whose displays are equal
        for rank in sorted(rich):
            groups.setdefault(rich[rank].same(), []).append(rank)
        figures: list[tuple[str, Rich]] = []
        for members in groups.values():
            each, label = rich[members[0]], f"{ranks(members)}:"
            if each.data.keys() <= {"text/plain"}:
                rows, most = each.rows, max(FEWEST, LINES // len(groups))
                counts = dict.fromkeys(members, len(rows))
                self._lines += _labelled(Shared(rows, False, counts), most)
            else:
                figures.append((label, each))
        cells = [_cell(each.data, each.metadata) for _, each in figures]
        if len(figures) > 1 and all(cells):
            self._end_text()
            self._bundles.append(_grid([label for label, _ in figures], cells, figures))
            return
        for label, each in figures:
            if self._lines or label != self._label:  # else it belongs to the one before
                self._lines.append((label, ""))
            self._end_text()
            self._bundles.append(Bundle(each.data, each.metadata))
            self._label = label


def fold(texts: Mapping[int, Text]) -> list[Shared]:
    """Fold lines: ranks whose lines are the first lines of another rank's are put with it."""
    found: list[Shared] = []
    for rank in sorted(texts, key=lambda rank: (-len(texts[rank].rows), rank)):
        rows, partial = texts[rank]
        if not rows:
            continue
        for chain in found:
            count = _begins(rows, partial, chain.rows)
            if count is not None:
                chain.counts[rank] = count
                break
        else:
            found.append(Shared(rows, partial, {rank: len(rows)}))
    return found


def _begins(rows: list[Row], partial: bool, longer: list[Row]) -> int | None:
    """How many lines of `rows` to fold if these are the first lines of `longer`, else None.

    A last line that has not ended yet needs only be the beginning of the other's.
    """
    count = len(rows) - partial
    if rows[:count] != longer[:count]:
        return None
    if not partial:
        return count
    other, own = longer[count], rows[-1]
    return count if other.name == own.name and other.text.startswith(own.text) else None


def _labelled(chain: Shared, most: int) -> Iterable[tuple[str, str]]:
    """(label, line) of the lines of a chain, of which at most about `most` are shown."""
    rows, counts = chain.rows, chain.counts
    longest = max(sorted(counts), key=counts.__getitem__)  # the first rank that has printed all
    first = last = len(rows)  # lines that are not shown
    if len(rows) > most + 1:
        first, last = most // 2, len(rows) - (most - most // 2)
    state: dict[str, str] = {}
    for number, row in enumerate(rows):
        name, text = row.name, row.text
        if first <= number < last:
            colours(text, state, name)
            if number > first:
                continue
            count = sum(row.lines for row in rows[first:last])
            name, line = "note", f"... {count:,} lines more; c.output({longest}) has them"
        else:
            more = max(0, len(text) - SHOWN) + row.more
            line = colours(Row(name, text[:SHOWN], more).whole(), state, name)
        members = [rank for rank, count in counts.items() if count > number]
        yield f"{ranks(members)}{' stderr' if name == 'stderr' else ''}:", line


def colours(text: str, state: dict[str, str], name: str) -> str:
    """The line with the colours that a line before it has switched on, switched off at its end."""
    before = after = state.get(name, "")
    for code, numbers in COLOUR.findall(text):
        kept = after if len(after) < LONGEST else ""
        after = kept + code if numbers.strip("0;") else ""
    state[name] = after
    return f"{before}{text}{RESET if after else ''}"


def _cell(data: Mapping, metadata: Mapping) -> str:
    """HTML of a figure or a table for a grid; "" if it has none that can be put in one."""
    table = "".join(data.get("text/html", ""))
    if table.startswith("<img "):  # of figure_style: it fits dark pages, too
        return table
    for kind in IMAGES:
        if kind in data:
            image = "".join(data[kind]).replace("\n", "")
            if kind == "image/svg+xml":
                image = base64.b64encode("".join(data[kind]).encode()).decode()
            size = metadata.get(kind) or {}
            width = f"width:{size['width']:g}px;" if "width" in size else ""
            style = f"{width}max-width:100%;height:auto"
            return f"<img src='data:{kind};base64,{image}' style='{style}' alt='figure'>"
    if not table or "<script" in table or any(kind.startswith("application/") for kind in data):
        return ""
    return f"<div style='overflow-x:auto'>{table}</div>"


def _grid(labels: list[str], cells: list[str], figures: list[tuple[str, Rich]]) -> Bundle:
    parts = [
        f"<figure style='margin:0;min-width:0'><figcaption style='{CAPTION}'>"
        f"{html.escape(label)}</figcaption>{cell}</figure>"
        for label, cell in zip(labels, cells, strict=True)
    ]
    width = WIDTH
    if len(parts) % 2 == 0:  # in pairs: four figures are never three and one
        parts = [_columns(pair, WIDTH) for pair in zip(parts[::2], parts[1::2], strict=True)]
        width = 2 * WIDTH + 1
    texts = ("\n".join(row.text for row in each.rows) for _, each in figures)
    text = "\n".join(map(" ".join, zip(labels, texts, strict=True)))
    return Bundle({"text/html": _columns(parts, width), "text/plain": text})


def _columns(parts: Iterable[str], width: int) -> str:
    """A grid of as many columns as fit the page, each at least `width` em wide."""
    columns = f"repeat(auto-fit,minmax(min(100%,{width}em),1fr))"
    style = f"display:grid;gap:0.5em;align-items:start;grid-template-columns:{columns}"
    return f"<div style='{style}'>{''.join(parts)}</div>"


def lines_of(bundles: Iterable[Bundle]) -> list[str]:
    """The bundles' text, for a terminal."""
    texts = ("".join(bundle.data.get("text/plain", "")) for bundle in bundles)
    return [line for text in texts for line in text.splitlines()]
