"""Lifelines: connections by which the ends of processes on other machines are noticed.

On its own machine a process sees in /proc that another one has ended. From other machines, each
rank of a search opens a TCP connection to the coordinator, and nothing is sent on it but a first
line. When a process ends, however it ends, its system closes the connection, which the other side
sees at once. When a machine is switched off or cut off, TCP's keep-alive finds that out in 30 s.

A rank that can't connect (a firewall) is not watched: what it trains is given up at its deadline.
"""

from __future__ import annotations

import secrets
import socket
import threading
from contextlib import suppress
from socketserver import StreamRequestHandler, ThreadingTCPServer

from numba_kernels.team.bytes import broadcast

IDLE, EVERY, TIMES = 10, 5, 4  # seconds until TCP asks, between two questions, and how many
CONNECT = 3.0  # seconds for a connection


class Watch(StreamRequestHandler):
    """A thread that waits for the end of one connection."""

    def handle(self) -> None:
        _keep_alive(self.request)
        token, _, rank = self.rfile.readline(256).decode(errors="replace").strip().partition(" ")
        if token == self.server.token and rank.isdigit():
            self.server.lines[int(rank)] = self.request
            try:
                self.rfile.read()  # to its end, or until the keep-alive has no answer
            finally:
                self.server.ended.add(int(rank))


class Lifelines(ThreadingTCPServer):
    """The coordinator's end.

    Attributes:
        token: What the first line of a connection must begin with, so that no other program's
            connection counts.
        lines: The connections by rank.
        ended: Ranks whose connection has been closed.
    """

    daemon_threads, block_on_close, request_queue_size = True, False, 1024

    def __init__(self):
        super().__init__(("", 0), Watch)
        self.token, self.lines, self.ended = secrets.token_hex(16), {}, set()
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def where(self) -> dict:
        """What a rank needs to connect."""
        names = [socket.gethostname(), socket.getfqdn()]
        with suppress(OSError):
            names += socket.gethostbyname_ex(socket.gethostname())[2]
        port = self.server_address[1]
        return {"names": list(dict.fromkeys(names)), "port": port, "token": self.token}

    def handle_error(self, request, address) -> None:
        """Say nothing: a connection that fails has ended."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        for line in self.lines.values():
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


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
    where = broadcast(team, lines and lines.where())
    if team.rank and where and (everywhere or team.pid(0) is None):
        return Lifeline(where, team.rank)
    return lines
