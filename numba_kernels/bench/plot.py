"""Plot the rows of a benchmark: time by size, one panel per operation."""

from .rows import BEST

ENDINGS = (".png", ".svg", ".pdf")
OURS = ("#1b6ca8", "#2a9d8f", "#7b5ea7")  # solid; peers are dashed, in the colours of warning
THEIRS = ("#d1495b", "#e08e2b", "#8d6a4f", "#6c757d")


def figure_of(result: dict):
    """Return the figure of `result`, the content of --json."""
    from matplotlib.figure import Figure

    panels: dict[str, list[dict]] = {}
    for one in result["rows"]:
        panels.setdefault(title(one), []).append(one)
    peers = dict.fromkeys(one["peer"] for one in result["rows"])
    colors = {peer: THEIRS[i % len(THEIRS)] for i, peer in enumerate(peers)}
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 4.0 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for ax, (name, rows) in zip(axes, panels.items(), strict=False):
        key = "bytes" if "bytes" in rows[0] else "parameters"
        curves = len({one[key] for one in rows}) > 1
        (panel if curves else bars)(ax, rows, key, colors)
        ax.set_title(name, fontsize=10)
        ax.grid(alpha=0.25)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    figure.suptitle(f"{result['machine']}: peers' time / ours", fontsize=9, color="0.4")
    return figure


def title(one: dict) -> str:
    ranks = f"{one['ranks']} ranks" if one["ranks"] > 1 else "1 rank"
    by_rule = one["algorithm"] + ", " if one["what"] in ("update", "synchronous step") else ""
    return f"{by_rule}{one['what']}, {ranks}"


def panel(ax, rows: list[dict], key: str, colors: dict[str, str]) -> None:
    """Plot time by size, both logarithmic: ours solid; peers dashed, with their ratio to ours."""
    from matplotlib.patheffects import withStroke

    sizes = sorted({one[key] for one in rows})
    algorithms = list(dict.fromkeys(one["algorithm"] for one in rows))
    if rows[0]["what"] == BEST:
        algorithms = [None]  # which one is the fastest depends on the size
    for i, algorithm in enumerate(algorithms):
        ours = {one[key]: one["ours_us"] for one in rows if algorithm in (None, one["algorithm"])}
        line(ax, ours, OURS[i % len(OURS)], "o-", f"ours: {algorithm or 'the fastest'}")
    for peer in dict.fromkeys(one["peer"] for one in rows):
        theirs = {one[key]: one["peer_us"] for one in rows if one["peer"] == peer}
        line(ax, theirs, colors[peer], "s--", peer)
        for size, time in theirs.items():
            ratio = max(r["ratio"] for r in rows if r["peer"] == peer and r[key] == size)
            ax.annotate(
                times(ratio), (size, time), (0, 5), textcoords="offset points", ha="center",
                fontsize=7, color=colors[peer], zorder=4,
                path_effects=[withStroke(linewidth=2, foreground="white")],
            )  # fmt: skip
    limit = {one[key]: one["ours_us"] * one["fraction_of_limit"] for one in rows}
    line(ax, limit, "0.6", ":", "bytes moved / copy bandwidth")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.margins(0.08, 0.12)
    label = in_bytes if key == "bytes" else "{:,}".format
    ax.set_xticks(sizes, [label(size) for size in sizes], fontsize=7)
    ax.minorticks_off()
    ax.set_xlabel(key)
    ax.set_ylabel("time (µs)")
    ax.legend(fontsize=7, frameon=False)


def bars(ax, rows: list[dict], key: str, colors: dict[str, str]) -> None:
    """Plot a single size, with one bar per contestant."""
    heights, algorithms = {}, list(dict.fromkeys(r["algorithm"] for r in rows))
    for i, algorithm in enumerate(algorithms):
        of_it = [r for r in rows if r["algorithm"] == algorithm]
        where = f" ({algorithm})" if len(algorithms) > 1 else ""
        heights[f"ours: {algorithm}"] = (of_it[0]["ours_us"], OURS[i % len(OURS)], "")
        heights |= {
            f"{r['peer']}{where}": (r["peer_us"], colors[r["peer"]], times(r["ratio"]))
            for r in of_it
        }
    values, shades, ratios = zip(*heights.values(), strict=True)
    ax.bar_label(ax.bar(list(heights), values, 0.6, color=shades), ratios, padding=2)
    if len(heights) > 5:
        ax.tick_params(axis="x", labelrotation=90, labelsize=6)
    ax.margins(y=0.2)
    ax.set_xlabel(f"{rows[0][key]:,} {key}")
    ax.set_ylabel("time (µs)")


def line(ax, by_size: dict, color: str, style: str, label: str) -> None:
    sizes = sorted(by_size)
    ax.plot(
        sizes, [by_size[size] for size in sizes], style, color=color, label=label,
        markersize=4, linewidth=1.5,
    )  # fmt: skip


def times(ratio: float) -> str:
    """Format a ratio with its significant digits only: 0.95×, 4.3×, 128×."""
    return f"{ratio:.2f}×" if ratio < 2 else f"{ratio:.1f}×" if ratio < 20 else f"{ratio:.0f}×"


def in_bytes(n: int) -> str:
    """Format bytes for a tick label: 1K, 64M."""
    return f"{n >> 20}M" if n >= 1 << 20 else f"{n >> 10}K"
