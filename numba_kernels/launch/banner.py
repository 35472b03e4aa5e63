"""Remove mpiexec's own messages from the output of ranks."""

import re
from collections.abc import Mapping


class Banner:
    """Removes mpiexec's own messages about a failed rank from a stream of bytes.

    MPICH's mpiexec prints a dozen lines ("BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
    below the rank's own error message. All other output is passed on at once, including unfinished
    lines; only a line that may belong to the banner is held back until it is complete.
    """

    RULE = b"=" * 83
    OWN = re.compile(rb"\[mpiexec@.*\] (Sending Ctrl-C to processes|Press Ctrl-C again to force)")
    AFTER = (b"YOUR APPLICATION TERMINATED WITH", b"This typically refers", b"Please see the FAQ")
    # Beginnings of relevant lines: in the ranks' text, after a rule, in the banner, and below it.
    BEGINNINGS: Mapping[str, tuple[bytes, ...]] = {
        "text": (b"=", b"[mpiexec@"),
        "rule": (b"=   BAD TERMINATION",),
        "banner": (b"=",),
        "below": AFTER,
    }

    def __init__(self) -> None:
        self.state = "text"
        self.waiting = b""  # an unfinished line that may belong to the banner
        self.held = b""  # complete lines that belong to the ranks unless a banner follows
        self.inside_line = False  # the ranks' last line is unfinished

    def feed(self, data: bytes, last: bool = False) -> bytes:
        """Add `data` and return the bytes that can be shown now; `last` means the end of input."""
        text, shown = self.waiting + data, b""
        while text:
            line, newline, rest = text.partition(b"\n")
            if self.inside_line:
                shown += line + newline
                self.inside_line, text = not newline, rest
                continue
            if not newline and not last and self._may_become(line):
                break
            if self.state == "rule" and not line.startswith(self.BEGINNINGS["rule"]):
                self.state = "text"
                shown, self.held = shown + self.held, b""
            elif self.state == "below" and not line.startswith(self.AFTER):
                self.state = "text"
            if self.state == "text" and not self.OWN.match(line):
                if line == self.RULE or (not line and rest.startswith(b"==")):
                    self.held += line + newline
                    self.state = "rule" if line else "text"
                else:
                    shown, self.held = shown + self.held + line + newline, b""
                    self.inside_line = not newline
            elif self.state == "rule":
                self.state, self.held = "banner", b""
            elif self.state == "banner" and line == self.RULE:
                self.state = "below"
            text = rest
        self.waiting = text
        if last:
            shown, self.held = shown + self.held, b""
        return shown

    def _may_become(self, line: bytes) -> bool:
        return any(b.startswith(line) or line.startswith(b) for b in self.BEGINNINGS[self.state])
