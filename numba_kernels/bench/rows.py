"""Rows of a benchmark: of one start of the ranks, and merged over several starts."""

import statistics
from collections.abc import Sequence

import numpy as np

FULL_CYCLE = "parameter server, full cycle"
BY_MESSAGES, BEST = "allreduce by messages, full cycle", "allreduce by messages, best"


def row(
    what: str,
    ranks: int,
    size: dict,
    algorithm: str,
    ours: np.ndarray,
    peer: str,
    theirs: np.ndarray,
    moved: float,
    bandwidth: float,
) -> dict:
    """Return the row of one pair (ours and a peer) in one start.

    `size` is {"bytes": n} or {"parameters": n}. `ours` and `theirs` are seconds of each round.
    `moved` is the least bytes that all ranks together must read and write, and `bandwidth` comes
    from `timing.copy_bandwidth`.
    """
    return {
        "what": what,
        "ranks": ranks,
        **size,
        "algorithm": algorithm,
        "dtype": "float32",
        "ours_us": list(1e6 * ours),
        "peer": peer,
        "peer_us": list(1e6 * theirs),
        "moved_bytes": int(moved),
        "limit_us": 1e6 * moved / bandwidth,
    }


def merge(starts: Sequence[list[dict]]) -> list[dict]:
    """Merge the rows of all starts: medians over starts of medians over rounds.

    `ratio` is peer_us / ours_us. `ratio_from` is the peer's lower quartile over our upper quartile,
    over the rounds of all starts; `ratio_to` is the peer's upper over our lower one.
    """
    merged = []
    for versions in zip(*starts, strict=True):
        one, low, high = dict(versions[0]), {}, {}
        for name in ("ours_us", "peer_us"):
            rounds = np.concatenate([v[name] for v in versions])
            low[name] = float(np.quantile(rounds, 0.25, method="lower"))
            high[name] = float(np.quantile(rounds, 0.75, method="higher"))
            one[name] = statistics.median(statistics.median(v[name]) for v in versions)
        one["ratio"] = one["peer_us"] / one["ours_us"]
        one["ratio_from"] = low["peer_us"] / high["ours_us"]
        one["ratio_to"] = high["peer_us"] / low["ours_us"]
        limit = statistics.median(v["limit_us"] for v in versions)
        one["fraction_of_limit"] = limit / one["ours_us"]
        one["starts"] = len(versions)
        if one["what"] == FULL_CYCLE:  # of a parameter server: n numbers each way
            one["updates_per_second"] = 1e6 / one["ours_us"]
            one["bytes_per_second"] = one["updates_per_second"] * 8 * one["parameters"]
            one["peer_updates_per_second"] = 1e6 / one["peer_us"]
        del one["limit_us"]
        merged.append(one)
    return merged + best_of_messages(merged)


def best_of_messages(rows: list[dict]) -> list[dict]:
    """Return a row per size for the fastest algorithm that uses messages."""
    by_size: dict[tuple, list[dict]] = {}
    for one in rows:
        if one["what"] == BY_MESSAGES:
            by_size.setdefault((one["ranks"], one["bytes"]), []).append(one)
    return [min(of, key=lambda one: one["ours_us"]) | {"what": BEST} for of in by_size.values()]


def size_of(one: dict) -> str:
    """Format the size of a row: 8 B, 64 KiB, 1,200,000."""
    if one.get("bytes", 1024) < 1024:
        return f"{one['bytes']} B"
    return f"{one['bytes'] / 1024:,.0f} KiB" if "bytes" in one else f"{one['parameters']:,}"


def table(result: dict) -> str:
    """Format the rows as a table, below a line about the machine and one of headings."""
    heads = ("what", "ranks", "size", "ours", "us", "peer", "us", "ratio", "(quarters)")
    lines = [(*heads, "MB moved", "of limit")]
    for one in result["rows"]:
        quarters = f"({one['ratio_from']:.2f} to {one['ratio_to']:.2f})"
        lines.append((
            one["what"], str(one["ranks"]), size_of(one), one["algorithm"],
            f"{one['ours_us']:.1f}", one["peer"], f"{one['peer_us']:.1f}", f"{one['ratio']:.2f}",
            quarters, f"{one['moved_bytes'] / 1e6:.2f}", f"{one['fraction_of_limit']:.2f}",
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # Words are aligned left, numbers right.
    sides = ["<" if heading in ("what", "ours", "peer") else ">" for heading in lines[0]]
    printed = [f"{result['machine']}, load {result['load']} before"]
    for line in lines:
        words = zip(line, sides, widths, strict=True)
        printed.append("  ".join(f"{word:{side}{width}}" for word, side, width in words).rstrip())
    return "\n".join(printed)
