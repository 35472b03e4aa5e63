"""%px, %%px and %%mpi: ipyparallel's magics, which wait for a cell as running_cell.py does."""

import contextlib
import copy
import re
from collections.abc import Iterator

from ipyparallel.client.magics import ParallelMagics
from IPython import get_ipython
from IPython.core import magic_arguments
from IPython.core.error import UsageError
from IPython.display import display

from . import cell_display
from .cell_runner import STATUS_AFTER
from .engine_values import begin_recording, end_recording

SECONDS = 60.0  # longest wait for engines to begin or end a recording; they may import Numba


class ClusterMagics(ParallelMagics):
    """ipyparallel's magics for the engines of a Cluster, and %%mpi."""

    progress_after_seconds = STATUS_AFTER

    def __init__(self, shell, cluster):
        self.cluster = cluster
        view = cluster.client[:]
        view.block = True
        super().__init__(shell, view)
        self.magics["cell"]["mpi"] = self.cell_mpi

    def parallel_execute(
        self, cell, block=None, save_name=None, targets=None, timeout=None, groupby="order", **shown
    ):
        """Run a cell; all magics call this. Returns the AsyncResult unless it waits (`block`)."""
        block = self.view.block if block is None else block
        targets = self.view.targets if targets is None else targets
        if self.verbose:
            print(f"{'Parallel' if block else 'Async parallel'} execution on engine(s): {targets}")
        page = shown.pop("page", None) or cell_display.page()
        own = {
            "stream_output": self.stream_output,
            "progress_after": self.progress_after_seconds,
            "signal_on_interrupt": self.signal_on_interrupt,
        }
        shown = own | {name: value for name, value in shown.items() if value is not None}
        if block:
            self.cluster.cells.free(targets, timeout, page)
        # Where the output is kept (-o), reports of long waits belong to it.
        shows = page.shows_status() and shown["progress_after"] >= 0
        status = bool(block and shows and not save_name)
        sent = self.cluster.cells.submit(cell, targets, timeout, status)
        self.last_result = sent.result
        if save_name:
            self.shell.user_ns[save_name] = sent.result
        if not block:
            return sent.result

        sent.wait(page, groupby=groupby, **shown)

    def cell_px(self, line="", cell=None):
        """Run the cell on the engines."""
        return super().cell_px(line, numbered("px", line, cell))

    def result(self, line=""):
        """Wait for the last cell that was run with --noblock, and show its output."""
        args = magic_arguments.parse_argstring(self.result, line)
        if self.last_result is None or args.save_name:
            return super().result(line)
        self.last_result.cell.wait(stream_output=False, groupby=args.groupby)

    cell_px.parser = copy.deepcopy(ParallelMagics.cell_px.parser)
    result.parser = copy.deepcopy(ParallelMagics.result.parser)
    for each in (cell_px.parser, result.parser):
        each.set_defaults(groupby="order")

    @magic_arguments.magic_arguments()
    @magic_arguments.argument("--ranks", help="ranks such as 0,2 or 1-3; default: all")
    @magic_arguments.argument(
        "--timeout", type=float, help="seconds after which the cell is interrupted"
    )
    @magic_arguments.argument(
        "--trace",
        action="store_true",
        help="draw below the cell when each rank computed, communicated and waited",
    )
    def cell_mpi(self, line="", cell=None):
        """Run the cell on some or all ranks, with an optional time limit and trace."""
        args = magic_arguments.parse_argstring(self.cell_mpi, line)
        if args.timeout is not None and not args.timeout > 0:
            raise UsageError(f"--timeout must be more than 0 seconds, got {args.timeout:g}")
        ranks = which_ranks("all" if args.ranks is None else args.ranks, self.cluster.n)
        cell = numbered("mpi", line, cell)
        page = cell_display.page()
        self.cluster.cells.free(ranks, args.timeout, page)  # so that the drawing can begin
        with drawn(self.cluster.cells, ranks) if args.trace else contextlib.nullcontext():
            self.parallel_execute(cell, block=True, targets=ranks, timeout=args.timeout, page=page)


@contextlib.contextmanager
def drawn(cells, ranks: list[int]) -> Iterator[None]:
    """Record the engines inside the block and draw the timeline at its end, also after a failure.

    Ranks that are blocked or lost have no row.
    """
    from tutorial_dl.training import timeline

    cells.check(ranks)
    cells.client[ranks].apply_async(begin_recording).get(timeout=SECONDS)
    try:
        yield
    finally:
        back = [rank for rank in ranks if rank not in cells.now or not cells.now[rank].pending()]
        back = [] if cells.lost() else back
        if back:
            taken = cells.client[back].apply_async(end_recording).get(timeout=SECONDS)
            whole = timeline.gather(taken)
            display(whole)
            for note in whole.notes():
                print(note)


def numbered(magic: str, line: str, cell: str) -> str:
    """The source for the engines, with the magic's line as a comment: it counts in a notebook."""
    return cell if cell.lstrip().startswith("%%") else f"# %%{magic} {line}".rstrip() + f"\n{cell}"


def which_ranks(text: str, size: int) -> list[int]:
    """The ranks in `text` ("all", "2", "0,2", "1-3" or "0,2-3"), each once, ascending."""
    if text == "all":
        return list(range(size))
    chosen: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not match or first > last:
            raise UsageError(f"--ranks must be like 1 or 0,2 or 1-3 or all, got {text}")
        if last >= size:
            raise UsageError(f"--ranks {text}: no rank {last}, only ranks 0 to {size - 1}")
        chosen.update(range(first, last + 1))
    return sorted(chosen)


def activate(cluster) -> None:
    """Make %px, %%px and %%mpi of this IPython session run on a cluster's engines."""
    shell = get_ipython()
    if shell is not None:
        shell.register_magics(ClusterMagics(shell, cluster))
