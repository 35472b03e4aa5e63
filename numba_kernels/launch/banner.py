"""Takes mpiexec's own remarks out of what ranks write."""

from __future__ import annotations

import re
from collections.abc import Mapping


class Banner:
    """Takes mpiexec's own remarks on a rank that failed out of a stream of bytes.

    MPICH's mpiexec prints a dozen lines ("BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
    below the rank's own error message. Everything else is handed on at once, unfinished lines
    included; only a line that may turn out to belong to the banner waits for its end.
    """

    RULE = b"=" * 83
    OWN = re.compile(rb"\[mpiexec@.*\] (Sending Ctrl-C to processes|Press Ctrl-C again to force)")
    AFTER = (b"YOUR APPLICATION TERMINATED WITH", b"This typically refers", b"Please see the FAQ")
    # How the lines begin that matter: in ranks' text, after a rule, inside the banner, below it.
    BEGINNINGS: Mapping[str, tuple[bytes, ...]] = {
        "text": (b"=", b"[mpiexec@"),
        "rule": (b"=   BAD TERMINATION",),
        "banner": (b"=",),
        "below": AFTER,
    }

    def __init__(self) -> None:
        self.state = "text"
        self.waiting = b""  # an unfinished line that may be the banner's
        self.held = b""  # whole lines that are the ranks' unless a banner follows
        self.inside_line = False  # the ranks' last line has no end yet

    def feed(self, data: bytes, last: bool = False) -> bytes:
        """What of all that has come so far can be shown now; `last`: nothing more will come."""
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
