"""Ask engines what they are doing, without waiting for those that can't answer."""

import contextlib
import re
import threading
import time
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path

from ipyparallel.error import NoEnginesRegistered

from .protocol import QUESTION, WRITE, Doing, position_file

PATIENCE = 1.0  # seconds after which an answer is no longer expected; engines share their cores
# At the first of these calls on a communicator, mpi4py duplicates it and holds the GIL meanwhile.
KEEPS_GIL = re.compile(r"\.(reduce|allreduce|scan|exscan)\(")
FRAME = re.compile(r'  File "(.*)", line (\d+) in ')  # a line of faulthandler's output


class Asking:
    """Asks engines through a client; those that can't answer write their position to `folder`."""

    def __init__(self, client, folder: Path):
        self.client, self.folder = client, folder
        self._questions: dict[int, tuple[float, futures.Future]] = {}
        self._one_at_a_time = threading.Lock()  # a live view asks from a thread

    def ask(
        self, ranks: list[int], codes: Mapping[int, str], seconds: float, signal: bool = True
    ) -> dict[int, Doing]:
        """What engines that run the cells `codes` do, for those that respond within `seconds`.

        `signal`: whether those that can't answer are sent a signal at which they write where they
        are; that may take 0.3 s per engine.
        """
        found = {}
        with self._one_at_a_time:
            for rank in ranks:
                if rank not in self._questions and (question := self.client.ask(rank, QUESTION)):
                    self._questions[rank] = time.monotonic(), question
            asked = {rank: self._questions[rank] for rank in ranks if rank in self._questions}
            futures.wait([question for _, question in asked.values()], timeout=seconds)
            for rank, (since, question) in asked.items():
                silent, code = time.monotonic() - since, codes.get(rank, "")
                if question.done():
                    del self._questions[rank]
                    found[rank] = Doing(**question.result()["content"])
                elif signal and silent > PATIENCE and (doing := self._written(rank, silent, code)):
                    found[rank] = doing
        return found

    def _written(self, rank: int, silent: float, code: str) -> Doing | None:
        """The position in the cell `code` that an engine writes to its file at a signal."""
        file = position_file(self.folder, rank)
        if not file.exists():
            return None  # don't send the signal: the engine has no handler for it
        before = file.stat().st_size
        with contextlib.suppress(NoEnginesRegistered, LookupError):  # it has ended meanwhile
            self.client.send_signal(int(WRITE), targets=rank, block=False)
        end = time.monotonic() + 0.3
        while file.stat().st_size == before and time.monotonic() < end:
            time.sleep(0.01)
        with file.open(errors="replace") as lines:
            lines.seek(before)
            frames = FRAME.findall(lines.read())
        cells = [int(line) for name, line in frames if "ipykernel_" in name]
        if not cells:
            return None
        line = cells[-1]  # the outermost frame: functions may come from earlier cells
        text = (["", *code.splitlines()] + [""] * line)[line].strip()
        mpi = "ipykernel_" in frames[0][0] and len(cells) == 1 and bool(KEEPS_GIL.search(text))
        return Doing("running", text, line, mpi, silent, 0, 0.0)
