"""ipyparallel's client and results, with what a cluster needs and ipyparallel does not offer.

It has no public name for whether a client is closed, for an engine's UUID, for the reply of each
engine, for messages of a new kind to an engine's control thread, or for metadata of a cell. The
two classes here derive from ipyparallel's to reach its private names, and no other file uses these.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import ipyparallel as ipp

from . import cell_display
from .cell_output import Output
from .protocol import ABOUT, About


class Client(ipp.Client):
    """A client that can ask engines, and send cells with metadata."""

    @property
    def connected(self) -> bool:
        return not self._closed

    @property
    def uuids(self) -> dict[int, str]:
        """The UUIDs of the engines that are connected, by rank."""
        return dict(self._engines)

    def ranks_of(self, targets) -> list[int]:
        """The ranks that `targets` means, in any form that ipyparallel accepts."""
        return self._build_targets(targets)[1]

    def wait_for_first_output(self, rank: int, seconds: float = 10.0) -> bool:
        """Wait until an idle engine's output arrives; False after `seconds`.

        The subscription to what engines publish is made in the background when the client connects,
        and what they publish before that is lost: a cell's output, and the message that it is over.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            asked = self[rank].execute("", silent=False, block=False)
            if asked.wait(1.0) and asked.wait_for_output(0.3):
                return True
        return False

    def ask(self, rank: int, question: str) -> Future | None:
        """Send a question to an engine's control thread; None if the engine is not connected."""
        uuid = self._engines.get(rank)
        if uuid is None or self._closed:
            return None
        return self._send(self._control_stream, question, content={}, ident=uuid.encode())

    def send_cell(
        self, code: str, ranks: Sequence[int], about: About, output: Output, buffers: Sequence = ()
    ) -> Result:
        """Send a cell as a DirectView does, which has no way to add metadata or buffers.

        Our kernel drops cells that were waiting for one that failed (engine.py); the way of
        ipykernel, which `stop_on_error` switches off, also drops cells that come soon after it.
        """
        content = dict(code=code, silent=False, user_expressions={}, stop_on_error=False)
        replies = [
            self._send(
                self._mux_stream, "execute_request", content=content, metadata={ABOUT: about},
                buffers=list(buffers), ident=self._engines[rank].encode(), track_outstanding=True,
                message_future_hook=partial(self._follow, rank, output),
            )
            for rank in ranks
        ]  # fmt: skip
        return Result(self, replies, fname="%px", targets=list(ranks), owner=True)

    def _follow(self, rank: int, output: Output, reply: Future) -> None:
        """Have `output` receive the messages of a cell that is about to be sent."""

        def arrived(message: dict) -> None:
            output.receive(rank, message)
            # ipyparallel keeps the same, without a limit.
            reply.output.metadata.update(stdout="", stderr="", outputs=[])

        reply.iopub_callbacks.append(arrived)


class Result(ipp.AsyncResult):
    """The result of a cell, whose output `cell.output` has."""

    @property
    def replies(self) -> dict[int, Future]:
        """The reply of each rank."""
        return dict(zip(self._targets, self._children, strict=True))

    def get(self, *args, **kwargs):
        """The results; raises the error of the cell, as a cell that was waited for does."""
        if not self.cell.waited:
            self.cell.wait(cell_display.Page())  # which shows nothing
        return super().get(*args, **kwargs)

    @property
    def stdout(self) -> list[str]:
        return [self.cell.output.printed(rank, "stdout") for rank in self._targets]

    @property
    def stderr(self) -> list[str]:
        return [self.cell.output.printed(rank, "stderr") for rank in self._targets]

    def display_outputs(self, groupby: str = "order", result_only: bool = False) -> None:
        """Show what the ranks have shown, as below the cell."""
        page = cell_display.page()
        page.follow(self.cell.output, False, groupby)
        page.end()
