"""What another user of this machine can learn about somebody's processes. Run it as that user:

    python stranger.py UID SECONDS FOLDER ... < secrets     (one secret per line, "name: text")

It looks for the secrets in everything of user UID that it can reach, and prints as JSON what it
has found, and how many things of each kind it has tried:

    ports       what TCP ports publish to a ZeroMQ subscriber, for SECONDS; ports without encryption
    sockets     Unix sockets, by name or abstract, as far as they can be connected to
    processes   command line, environment, memory, open files, folders of each process
    files       in FOLDERs, with pipes and sockets among them
    segments    System V shared memory
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

PIECE = 2**24  # bytes that are read at a time
READ_ONLY = 0o10000  # SHM_RDONLY
GREETING = b"\xff" + bytes(7) + b"\x01\x7f" + b"\x03\x00"  # ZMTP 3.0, up to the mechanism


def mechanism(port: int, seconds: float = 5.0) -> str:
    """How a ZeroMQ socket at this port checks who connects: "CURVE", "NULL" (not at all); or ""."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=seconds) as link:
        link.sendall(GREETING)
        came = b""
        while len(came) < 32 and (more := link.recv(32 - len(came))):
            came += more
        if came.startswith(b"\xff") and len(came) == 32:
            return came[12:].rstrip(b"\0").decode()
    return ""


class Stranger:
    def __init__(self, uid: int, secrets: dict[str, str]):
        self.uid, self.found, self.tried = uid, set(), {}
        self.secrets = {name: text.encode() for name, text in secrets.items()}
        self.longest = max(map(len, self.secrets.values()))

    def look(self, kind: str, where: str, content: bytes) -> None:
        for name, text in self.secrets.items():
            if text in content:
                self.found.add(f"{kind}: {name} in {where}")

    def count(self, kind: str) -> None:
        self.tried[kind] = self.tried.get(kind, 0) + 1

    def ports(self, seconds: float) -> None:
        import zmq

        context, ends = zmq.Context(), {}
        for line in open("/proc/net/tcp").read().splitlines()[1:]:  # noqa: SIM115
            address, state, uid = (line.split()[column] for column in (1, 3, 7))
            if state != "0A" or int(uid) != self.uid:  # 0A: it listens
                continue
            port = int(address.split(":")[1], 16)
            self.count("ports")
            if (how := mechanism(port)) != "CURVE":
                self.found.add(f"ports: {how or 'no'} authentication at a port")
            end = context.socket(zmq.SUB)
            end.linger = 0
            end.connect(f"tcp://127.0.0.1:{port}")
            end.subscribe(b"")
            ends[end] = port
        poller = zmq.Poller()
        for end in ends:
            poller.register(end, zmq.POLLIN)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for end, _ in poller.poll(1000 * left):
                self.look("ports", "what a port publishes", b"".join(end.recv_multipart()))
        context.destroy(linger=0)

    def sockets(self) -> None:
        for line in open("/proc/net/unix").read().splitlines()[1:]:  # noqa: SIM115
            fields = line.split(maxsplit=7)
            if len(fields) < 8:
                continue
            name, kind = fields[7], int(fields[4], 16)
            path = "\0" + name[1:] if name.startswith("@") else name
            with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as link:
                link.settimeout(0.2)
                link.connect(path)
                uid = ctypes.c_uint32.from_buffer_copy(
                    link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12), 4
                ).value
                if uid == self.uid:
                    self.count("sockets")
                    self.look("sockets", name, link.recv(PIECE))

    def processes(self) -> None:
        for name in filter(str.isdigit, os.listdir("/proc")):
            folder = Path("/proc", name)
            with suppress(OSError):
                if folder.stat().st_uid != self.uid or int(name) == os.getpid():
                    continue
                self.count("processes")
                for what in ("cmdline", "environ", "maps", "auxv", "syscall", "stack"):
                    self.file("processes", folder / what, what)
                for link in ("cwd", "root", "exe"):
                    with suppress(OSError):
                        os.readlink(folder / link)
                        self.found.add(f"processes: {link} can be followed")
                with suppress(OSError):
                    for descriptor in os.listdir(folder / "fd"):
                        self.file("processes", folder / "fd" / descriptor, "open file")
                with suppress(OSError), open(folder / "mem", "rb", buffering=0) as memory:
                    self.memory(memory, (folder / "maps").read_text())

    def memory(self, memory, maps: str) -> None:
        for first, last in re.findall(r"^(\w+)-(\w+) r", maps, re.MULTILINE):
            with suppress(OSError, OverflowError):
                memory.seek(int(first, 16))
                self.look("processes", "memory", memory.read(int(last, 16) - int(first, 16)))

    def file(self, kind: str, path: Path, where: str) -> None:
        """Search what can be read of a file; pipes, sockets and devices are opened only."""
        with suppress(OSError):
            end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with open(end, "rb", buffering=0) as file:
                mode = os.fstat(end).st_mode
                if not stat.S_ISREG(mode):
                    if os.fstat(end).st_uid == self.uid and stat.S_ISFIFO(mode):
                        self.found.add(f"{kind}: a pipe can be opened, {where}")
                    return
                before = b""
                while more := file.read(PIECE):
                    self.look(kind, where, before + more)
                    before = more[-self.longest :]

    def files(self, folders: list[str]) -> None:
        for top in folders:
            for folder, _, names in os.walk(top):
                for name in names:
                    path = Path(folder, name)
                    with suppress(OSError):
                        if path.lstat().st_uid == self.uid:
                            self.count("files")
                            self.file("files", path, str(path))

    def segments(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
        for line in open("/proc/sysvipc/shm").read().splitlines()[1:]:  # noqa: SIM115
            number, mode, size, uid = (int(line.split()[column]) for column in (1, 2, 3, 7))
            if uid != self.uid:
                continue
            self.count("segments")
            address = libc.shmat(number, None, READ_ONLY)
            if address != ctypes.c_void_p(-1).value:
                self.found.add(f"segments: one with mode {mode % 10000:04d} can be read")
                self.look("segments", "shared memory", ctypes.string_at(address, size))


def main() -> None:
    uid, seconds, *folders = sys.argv[1:]
    secrets = dict(line.rstrip("\n").split(": ", 1) for line in sys.stdin)
    stranger = Stranger(int(uid), secrets)
    stranger.ports(float(seconds))
    stranger.sockets()
    stranger.processes()
    stranger.files(folders)
    stranger.segments()
    print(json.dumps({"found": sorted(stranger.found), "tried": stranger.tried}))


if __name__ == "__main__":
    main()
