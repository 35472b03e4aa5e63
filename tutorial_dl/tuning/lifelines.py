"""Lifelines: connections by which the ends of processes on other machines are noticed.

On its own machine a process sees in /proc that another one has ended. From other machines, each
rank of a search opens a TCP connection to the coordinator, and nothing is sent on it but a first
line. When a process ends, however it ends, its system closes the connection, which the other side
sees at once. When a machine is switched off or cut off, TCP's keep-alive finds that out within
`SILENCE` seconds.

A rank that can't connect (a firewall) is not watched: what it trains is given up at its deadline.
"""

from __future__ import annotations

import json
import secrets
import selectors
import socket
from contextlib import suppress

from numba_kernels.team.bytes import broadcast_text

IDLE, EVERY, TIMES = 10, 5, 4  # seconds until TCP asks, between two questions, and how many
SILENCE = IDLE + EVERY * TIMES
CONNECT = 3.0  # seconds for a connection


class Lifelines:
    """The coordinator's end.

    Attributes:
        token: What the first line of a connection must begin with, so that no other program's
            connection counts.
        ended: Ranks whose connection has been closed.
    """

    def __init__(self):
        self.token, self.ended = secrets.token_hex(16), set()
        self.listener = socket.create_server(("", 0), backlog=1024)
        self.listener.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.lines: dict[socket.socket, int | None] = {}  # -> rank, once it has said so
        self.heard: dict[socket.socket, bytes] = {}  # before that

    def where(self) -> dict:
        """What a rank needs to connect: values that JSON can hold."""
        names = [socket.gethostname(), socket.getfqdn()]
        with suppress(OSError):
            names += socket.gethostbyname_ex(socket.gethostname())[2]
        port = self.listener.getsockname()[1]
        return {"names": list(dict.fromkeys(names)), "port": port, "token": self.token}

    def look(self) -> set[int]:
        """The ranks that have ended by now; never waits."""
        for key, _ in self.selector.select(0):
            if key.fileobj is self.listener:
                self._accept()
            else:
                self._read(key.fileobj)
        return self.ended

    def _accept(self) -> None:
        with suppress(OSError):  # there is none any more
            line, _ = self.listener.accept()
            line.setblocking(False)
            _keep_alive(line)
            self.selector.register(line, selectors.EVENT_READ)
            self.lines[line], self.heard[line] = None, b""

    def _read(self, line: socket.socket) -> None:
        try:
            said = line.recv(256)
        except BlockingIOError:
            return
        except OSError:  # the keep-alive had no answer
            said = b""
        if said and self.lines[line] is None:
            self.heard[line] += said
            words = self.heard[line].decode(errors="replace")
            token, _, rank = words.rstrip("\n").partition(" ")
            if len(words) < 256 and not words.endswith("\n"):
                return  # more is to come
            if token == self.token and rank.isdigit():
                self.lines[line] = int(rank)
                return
        self.selector.unregister(line)
        line.close()  # the end, or a stranger
        self.heard.pop(line)
        rank = self.lines.pop(line)
        if rank is not None:
            self.ended.add(rank)

    def close(self) -> None:
        for one in (self.selector, self.listener, *self.lines):
            one.close()


class Lifeline:
    """A rank's end."""

    def __init__(self, where: dict, rank: int):
        self.line = None
        for name in where["names"]:
            with suppress(OSError):
                self.line = socket.create_connection((name, where["port"]), CONNECT)
                _keep_alive(self.line)
                self.line.sendall(f"{where['token']} {rank}\n".encode())
                self.line.setblocking(False)
                return

    def has_ended(self) -> bool:
        """Whether the coordinator has; False if there is no connection."""
        if self.line is None:
            return False
        try:
            return not self.line.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        if self.line is not None:
            self.line.close()


def _keep_alive(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("KEEPIDLE", IDLE), ("KEEPINTVL", EVERY), ("KEEPCNT", TIMES)):
        if hasattr(socket, f"TCP_{name}"):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)


def connected(team, everywhere: bool = False) -> Lifelines | Lifeline | None:
    """This rank's end: of all lines on rank 0, of its own on ranks of other machines. Collective.

    None if it needs none. `everywhere`: also ranks of the coordinator's machine connect.
    """
    lines = None
    if team.rank == 0:
        far = everywhere or any(team.pid(rank) is None for rank in range(1, team.size))
        lines = Lifelines() if far else None
    where = json.loads(broadcast_text(team, json.dumps(lines and lines.where()), 0))
    if team.rank and where and (everywhere or team.pid(0) is None):
        return Lifeline(where, team.rank)
    return lines
