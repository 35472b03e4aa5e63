"""c["x"], c[0]["x"] and c.run(function): variables and functions on all or some ranks.

Each is one cell on these ranks (engine_values.py), so its errors, its output, the stop button and
the death of a rank are those of %%px (running_cell.py).
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import linecache
import operator
from collections.abc import Callable, Sequence
from typing import Any

from IPython import get_ipython

from numba_kernels.errors import line_of

from . import parcels
from .cell_errors import CellError
from .engine_values import CODE, SENT
from .parcels import CannotSend
from .rank_status import ranks
from .registry import short_tracebacks


class Ranks:
    """Some ranks of a cluster, as c[0], c[1:3] or c[[0, 2]].

    `c[0]["x"]` is the variable x of rank 0; `c[1:3]["x"]` is a list, in the order of the ranks.
    """

    def __init__(self, cluster, numbers: Sequence[int], one: bool = False):
        self.cluster, self.numbers, self.one = cluster, list(numbers), one

    def __getitem__(self, name: str | tuple[str, ...]) -> Any:
        """The value of an expression on each rank: a list, or the value alone for c[0].

        Args:
            name: A variable, or an expression such as "history.epochs" or "x.sum()". A tuple of
                names, as in c[0]["n", "seconds"], gives a tuple of values.

        Raises:
            CellError: If a rank does not have it, or can't send it; one line.
        """
        text = f"({', '.join(name)},)" if is_names(name) else name
        _check(text, "eval", f"c[{name!r}]: the brackets take a name or an expression in quotes")
        return self._ask(("get", text.strip()))

    def __setitem__(self, name: str, value: object) -> None:
        """Send `value` to these ranks, as their variable `name`; also "x[0]" or "model.rate"."""
        right = f"c[{name!r}] = ...: the brackets take a variable's name in quotes"
        _check(name, "exec", right, after=" = 0")
        self._ask(("do", f"{name.strip()} = {SENT}", value))

    def __delitem__(self, name: str) -> None:
        right = f"del c[{name!r}]: the brackets take a variable's name in quotes"
        _check(name, "exec", right, before="del ")
        self._ask(("do", f"del {name.strip()}", None))

    def __contains__(self, name: str) -> bool:
        """Whether each of these ranks has the variable `name`."""
        return all(Ranks(self.cluster, self.numbers)[f"{name!r} in globals()"])

    def __len__(self) -> int:
        """The number of ranks."""
        return len(self.numbers)

    @short_tracebacks
    def run(self, work: Callable | str, *args, timeout: float | None = None, **kwargs) -> Any:
        """Call a function on each rank, and wait; text is run as `execute` does.

        The function may be one of the notebook: also a lambda, or one inside another function. It
        takes along the values that it uses of the notebook. Names that the notebook does not have
        are the rank's variables.

        Args:
            work: A function; called as work(*args, **kwargs).
            timeout: Seconds after which the ranks are interrupted. A parameter of that name is
                passed by functools.partial(work, timeout=...).

        Returns:
            The function's results in the order of the ranks; for c[0], its result.

        Raises:
            CellError: If a rank failed; it says which and why. CellTimeout after `timeout`.
        """
        if isinstance(work, str):
            return self.execute(work, *args, timeout=timeout, **kwargs)
        if not callable(work):
            raise CellError([f"run takes a function, got {work!r}: c.run(function, *args)"])
        name = getattr(work, "__name__", "")
        name = name if name.isidentifier() else "function"
        return self._ask(("run", name, work, args, kwargs), timeout)

    @short_tracebacks
    def execute(self, code: str, timeout: float | None = None) -> None:
        """Run a cell's text as %%px does, and wait for it.

        Args:
            code: Source of a cell.
            timeout: Seconds after which the ranks are interrupted.

        Raises:
            CellError: If a rank failed; it says which and why. CellTimeout after `timeout`.
            ValueError: If `timeout` is not above 0.
        """
        if self.numbers:
            self.cluster.cells.run(code, list(dict.fromkeys(self.numbers)), timeout)

    def _ask(self, request: tuple, timeout: float | None = None) -> Any:
        """Send a request, wait for its end, and return the results."""
        cells = self.cluster.cells
        cells.check([])  # before a large object is pickled for a cluster that was stopped
        try:
            buffers, files = parcels.pack(request)
        except CannotSend as error:
            raise CellError([_not_sent(request, str(error))]) from None
        shell, texts = get_ipython(), {}  # of those files that are cells of this notebook
        for file in files if shell is not None else ():
            if (label := shell.compile.format_code_name(file)) is not None:
                texts[file] = label[1], "".join(linecache.getlines(file))
        sources, _ = parcels.pack(texts)
        numbers = list(dict.fromkeys(self.numbers))  # each rank once
        if not numbers:
            return []
        try:
            cell = cells.run(CODE, numbers, timeout, buffers=[*sources, *buffers])
        except CellError as error:
            failures = list(error.failures.values())
            if failures and all(each.name == CannotSend.__name__ for each in failures):
                # One line instead of one per rank with the name CannotSend
                raise CellError([failures[0].message], failures=error.failures) from None
            raise
        published = cell.take_values()
        results = [_unpacked(rank, published[rank]) for rank in self.numbers]
        return results[0] if self.one else results

    def __repr__(self) -> str:
        return f"{ranks(self.numbers)} of the cluster {self.cluster.name}"


def selected(cluster, key: Any) -> Ranks:
    """The ranks that c[0], c[-1], c[1:3] and c[[0, 2]] mean."""
    if isinstance(key, slice):
        return Ranks(cluster, range(cluster.n)[key])
    if isinstance(key, list | tuple | range):
        return Ranks(cluster, [_rank(cluster, each) for each in key])
    return Ranks(cluster, [_rank(cluster, key)], one=True)


class NoSuchRank(CellError, IndexError):
    """A cluster has no such rank. (IndexError, so that `for one in c` ends.)"""


def _rank(cluster, number: Any) -> int:
    """`number` as a rank of the cluster; negative ones count from the end."""
    size = cluster.n
    try:
        if isinstance(number, bool):
            raise TypeError
        found = operator.index(number)
    except TypeError:
        right = 'a name in quotes (c["x"]), a rank (c[0]) or several (c[1:3], c[[0, 2]])'
        raise CellError([f"c[{number!r}]: the brackets take {right}"]) from None
    if not -size <= found < size:
        raise NoSuchRank([f"there is no rank {found}: the cluster has {ranks(range(size))}"])
    return found % size


def is_names(key: Any) -> bool:
    return isinstance(key, tuple) and bool(key) and all(isinstance(each, str) for each in key)


def _check(name: Any, mode: str, message: str, before: str = "", after: str = "") -> None:
    """Raise CellError, one line, unless the name is an expression or the target of a statement."""
    try:
        if not isinstance(name, str) or not name.strip():
            raise SyntaxError
        tree = ast.parse(f"{before}{name.strip()}{after}", mode=mode)
        if mode == "exec" and not isinstance(tree.body[0], ast.Assign | ast.Delete):
            raise SyntaxError
        compile(tree, "<name>", mode)
    except (SyntaxError, ValueError):  # ValueError: a null character
        raise CellError([message]) from None


def _not_sent(request: tuple, why: str) -> str:
    """One line on which part of a request can't be pickled."""
    what, _, value, *arguments = request
    make = "make it in a %%px cell"
    if what == "do":
        return (
            f"{parcels.kind(value)} can't be sent to the ranks ({why}): {make}, or send what it is "
            "made from"
        )
    function, (args, kwargs) = value, arguments
    name = getattr(function, "__name__", None) or parcels.kind(function)
    parts = {}
    with contextlib.suppress(TypeError, ValueError):  # not Python's, or a variable without a value
        used = inspect.getclosurevars(function)
        parts = {
            f"{name} uses {key}": each for key, each in (used.nonlocals | used.globals).items()
        }
    parts |= {f"argument {number} of {name} is": value for number, value in enumerate(args, 1)}
    parts |= {f"argument {key} of {name} is": value for key, value in kwargs.items()}
    for part, value in parts.items():
        try:
            parcels.pack(value)
        except CannotSend as error:
            comma = "," if " uses " in part else ""
            return (
                f"{part}{comma} {parcels.kind(value)}, which can't be sent to the ranks ({error}): "
                f"{make}, or inside the function"
            )
    return f"{name} can't be sent to the ranks ({why}): define it in a %%px cell"


def _unpacked(rank: int, parcel: Sequence) -> Any:
    try:
        return parcels.unpack(parcel)
    except Exception as error:  # a class's own unpickling may raise anything
        raise CellError(
            [
                f"what rank {rank} sent can't be read in the notebook "
                f"({line_of(error)}): ask for a part of it"
            ]
        ) from None
