"""Takes mpiexec's own remarks out of what ranks print.

mpiexec prints up to a dozen lines below the error message of a rank that failed, which would hide
it. `Remarks` removes them from a stream of bytes, and passes everything else on at once.
"""

import re
import socket
from typing import NamedTuple


class Block(NamedTuple):
    """Lines from one rule to the next, the first of which begins with one of `firsts`."""

    rule: bytes
    firsts: tuple[bytes, ...]
    after: tuple[bytes, ...] = ()  # beginnings of lines that may follow the second rule


BLOCKS = (
    Block(  # MPICH, "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"
        b"=" * 83,
        (b"=   BAD TERMINATION",),
        (b"YOUR APPLICATION TERMINATED WITH", b"This typically refers", b"Please see the FAQ"),
    ),
    # Open MPI calls itself prterun, or mpirun before version 5. What it says of MPI_Abort, or when
    # it can't start ranks, stays.
    Block(
        b"-" * 74,
        (
            *(
                name + what
                for name in (b"prterun", b"mpirun", b"mpiexec")
                for what in (b" noticed that", b" detected that", b" has exited due to")
            ),
            b"Primary job  terminated normally, but",
        ),
    ),
)
HERE = f"[{socket.gethostname().partition('.')[0]}:".encode()  # Open MPI's mpiexec, with its pid
LINES = (
    re.compile(rb"\[mpiexec@.*\] (Sending Ctrl-C to processes|Press Ctrl-C again to force)"),
    # Its libraries report that a rank which has been killed no longer answers.
    re.compile(re.escape(HERE) + rb"\d+\] PMIX ERROR: "),
    re.compile(rb"\[warn\] Epoll \w+\(\d+\) on fd \d+ failed"),  # libevent's, in prterun
)
# What ranks say in a line of its own, though a bar, an unfinished line, may be there
MESSAGES = (b"stall: ", b"error: ", b"note: ")
LINE_BEGINNINGS = (b"[mpiexec@", b"[warn] Epoll", HERE)


class Remarks:
    """Removes mpiexec's remarks from the text that `feed` is given, piece by piece.

    All other output is passed on at once, including unfinished lines; only a line that may belong
    to a remark is held back until it is complete.
    """

    def __init__(self) -> None:
        self.state = "text"  # then "rule", "block", "after"
        self.block = BLOCKS[0]  # the one that has begun, in other states than "text"
        self.waiting = b""  # an unfinished line that may belong to a remark
        self.held = b""  # complete lines that belong to the ranks unless a block follows
        self.inside_line = False  # the ranks' last line is unfinished

    def feed(self, data: bytes, last: bool = False) -> bytes:
        """Add `data` and return the bytes that can be shown now; `last` means the end of input."""
        text, shown = self.waiting + data, b""
        if self.inside_line and text.startswith(MESSAGES):
            shown, self.inside_line = b"\n", False
        while text:
            line, newline, rest = text.partition(b"\n")
            if self.inside_line:
                shown += line + newline
                self.inside_line, text = not newline, rest
                continue
            if not newline and not last and self._may_become(line):
                break
            if self.state == "rule" and not line.startswith(self.block.firsts):
                self.state = "text"
                shown, self.held = shown + self.held, b""
            elif self.state == "after" and not line.startswith(self.block.after):
                self.state = "text"
            if self.state == "text":
                shown += self._in_text(line, newline, rest)
            elif self.state == "rule":
                self.state, self.held = "block", b""
            elif self.state == "block" and line == self.block.rule:
                self.state = "after"
            text = rest
        self.waiting = text
        if last:
            shown, self.held = shown + self.held, b""
        return shown

    def _in_text(self, line: bytes, newline: bytes, rest: bytes) -> bytes:
        """Return what can be shown after this line of the ranks', or of mpiexec."""
        if any(pattern.match(line) for pattern in LINES):
            return b""
        begun = next((block for block in BLOCKS if line == block.rule), None)
        if begun is not None or (not line and rest.startswith(b"==")):  # MPICH's empty line above
            self.held += line + newline
            if begun is not None:
                self.state, self.block = "rule", begun
            return b""
        self.inside_line = not newline
        held, self.held = self.held, b""
        return held + line + newline

    def _may_become(self, line: bytes) -> bool:
        in_text = (*(block.rule for block in BLOCKS), *LINE_BEGINNINGS)
        beginnings = {
            "text": in_text,
            "rule": self.block.firsts,
            "block": (self.block.rule,),
            "after": (*self.block.after, *in_text),
        }[self.state]
        return any(b.startswith(line) or line.startswith(b) for b in beginnings)
