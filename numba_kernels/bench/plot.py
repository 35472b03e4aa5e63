"""The rows of a bench as a figure: time by size, a panel for what was measured."""

from __future__ import annotations

from pathlib import Path

KINDS = (".png", ".svg", ".pdf")
OURS = ("#1b6ca8", "#2a9d8f", "#7b5ea7")  # solid; peers are dashed, in the colours of warning
THEIRS = ("#d1495b", "#e08e2b", "#8d6a4f", "#6c757d")


def check(file: Path) -> Path:
    """`file` if a plot can be written there; ValueError otherwise."""
    if file.suffix not in KINDS:
        raise ValueError(f"--plot {file}: a name that ends in {', '.join(KINDS)} is right")
    return file


def draw(result: dict, file: Path) -> None:
    """Write the figure. ImportError where matplotlib is missing."""
    from matplotlib.figure import Figure

    panels: dict[str, list[dict]] = {}
    for one in result["rows"]:
        panels.setdefault(title(one), []).append(one)
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 4.0 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, (name, rows) in zip(axes, panels.items(), strict=False):
        panel(ax, name, rows)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    figure.suptitle(result["machine"], fontsize=9, color="0.4")
    figure.savefig(file, dpi=150)


def title(one: dict) -> str:
    ranks = f"{one['ranks']} ranks" if one["ranks"] > 1 else "1 rank"
    by_rule = one["algorithm"] + " " if one["what"] in ("update", "synchronous step") else ""
    return f"{by_rule}{one['what']}, {ranks}"


def panel(ax, name: str, rows: list[dict]) -> None:
    key = "bytes" if "bytes" in rows[0] else "parameters"
    sizes = sorted({one[key] for one in rows})
    algorithms = list(dict.fromkeys(one["algorithm"] for one in rows))
    if name.startswith("allreduce by messages, best"):
        algorithms = [None]  # another one at every size
    for i, algorithm in enumerate(algorithms):
        ours = {one[key]: one["ours_us"] for one in rows if algorithm in (None, one["algorithm"])}
        line(ax, sizes, ours, OURS[i % len(OURS)], "o-", f"ours: {algorithm or 'the fastest'}")
    for i, peer in enumerate(dict.fromkeys(one["peer"] for one in rows)):
        color = THEIRS[i % len(THEIRS)]
        theirs = {one[key]: one["peer_us"] for one in rows if one["peer"] == peer}
        line(ax, sizes, theirs, color, "s--", peer)
        for size, time in theirs.items():
            ratio = max(r["ratio"] for r in rows if r["peer"] == peer and r[key] == size)
            ax.annotate(
                f"{ratio:.1f}×", (size, time), (0, 5), textcoords="offset points",
                ha="center", fontsize=7, color=color,
            )  # fmt: skip
    limit = {one[key]: one["ours_us"] * one["fraction_of_limit"] for one in rows}
    line(ax, sizes, limit, "0.6", ":", "bytes moved / copy bandwidth")
    ax.set_xscale("log", base=2 if key == "bytes" else 10)
    ax.set_yscale("log")
    ax.margins(0.08, 0.12)
    if key == "bytes":
        ax.set_xticks(sizes, [in_bytes(size) for size in sizes], fontsize=7)
    else:
        ax.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7)
    ax.minorticks_off()
    ax.set_xlabel(key)
    ax.set_ylabel("µs")
    ax.set_title(name, fontsize=10)
    ax.grid(alpha=0.25)
    ax.legend(fontsize=7, frameon=False)


def line(ax, sizes: list, times: dict, color: str, style: str, label: str) -> None:
    present = [size for size in sizes if size in times]
    ax.plot(
        present, [times[size] for size in present], style, color=color, label=label,
        markersize=4, linewidth=1.5,
    )  # fmt: skip


def in_bytes(n: int) -> str:
    """As short as a tick's label must be: 1K, 64M.

    >>> in_bytes(1024), in_bytes(64 * 2**20)
    ('1K', '64M')
    """
    return f"{n >> 20}M" if n >= 1 << 20 else f"{n >> 10}K"
