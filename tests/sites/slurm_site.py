"""A real Slurm with two nodes on this machine, and a user of it: brought up and ended by tests.

    site = Site(folder); site.start(); site.run(["srun", "-n2", "hostname"]); site.stop()

Everything runs in a mount namespace of its own, so nothing of this machine is changed: there the
user has a line in /etc/passwd, the nodes' names are in /etc/hosts, and Python and this repository
can be read even if they lie in a folder of mode 0700, such as root's home. Each node has a host
name and a /dev/shm of its own. Nodes share the loopback network with this machine, which takes the
part of a login node.

By hand, until Ctrl-C (it prints how to run commands there):    python tests/sites/slurm_site.py
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
NODES = ("n1", "n2")
USER, UID = "student", 61000
PROGRAMS = ["ip", "munged", "slurmctld", "slurmd", "srun", "unshare", "nsenter", "setpriv"]
INSTALL = "apt-get install -y --no-install-recommends iproute2 slurmctld slurmd slurm-client munge"

CONF = """\
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
KillWait=20
MinJobAge=300
SlurmdTimeout=20
OverTimeLimit=0
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/slurmd.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=8000
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=8000
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP DefMemPerCPU=1000
"""

# Runs as root in a new mount namespace: $1 is the folder; the others are paths to make readable.
PREPARE = """\
set -eu
folder=$1; shift
for name in passwd group hosts; do mount --bind "$folder/etc/$name" "/etc/$name"; done
for path; do
  closed=/
  rest=${path#/}
  while [ -n "$rest" ]; do       # the first folder on the way that others may not enter
    closed=${closed%/}/${rest%%/*}
    case $rest in */*) rest=${rest#*/} ;; *) rest= ;; esac
    mode=$(stat -L -c %a "$closed")
    case $mode in *[1357]) ;; *) break ;; esac
    [ -n "$rest" ] || closed=
  done
  [ -n "$closed" ] && [ "$closed" != "$path" ] || continue
  mkdir -p "$folder/view"
  mount --bind "$path" "$folder/view"
  mount -t tmpfs -o mode=755 tmpfs "$closed"
  mkdir -p "$path"
  mount --bind "$folder/view" "$path"
  umount "$folder/view"
done
touch "$folder/ready"
exec sleep infinity
"""


def missing() -> str | None:
    """What this machine lacks, in one line; None if nothing."""
    if os.geteuid() != 0:
        return "make sites brings up a Slurm, which takes root: run it as root"
    lacks = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"make sites needs {', '.join(lacks)}: {INSTALL} util-linux" if lacks else None


class Site:
    """munged, slurmctld and a slurmd per node, with everything they write in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder  # others must be able to enter it and those above it
        self.home = folder / "home"
        self.daemons: dict[str, subprocess.Popen] = {}

    def start(self, seconds: float = 60.0) -> None:
        self._write_files()
        python = Path(sys.executable).resolve().parents[1]
        paths = [str(path) for path in (REPOSITORY, Path(sys.prefix).resolve(), python)]
        script = ["bash", "-c", PREPARE, "prepare", str(self.folder), *paths]
        self._start("namespace", ["unshare", "--mount", *script])
        self._until(lambda: (self.folder / "ready").exists(), "the mount namespace", seconds)
        munge = self.folder / "munge"
        options = [f"--{what}-file={munge}/{what}" for what in ("key", "pid", "log", "seed")]
        as_munge = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged"]
        socket_option = f"--socket={munge}/socket"
        self._start("munged", [*self._inside(), *as_munge, "-F", socket_option, *options])
        self._until(lambda: (munge / "socket").exists(), "munged", seconds)
        self._start("slurmctld", [*self._inside(), "slurmctld", "-D"])
        for node in NODES:
            self.start_node(node)
        self._until(self._idle, "slurmctld and slurmd", seconds)

    def start_node(self, node: str) -> None:
        own = f"hostname {node} && mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N {node}"
        self._start(node, [*self._inside(), "unshare", "--mount", "--uts", "bash", "-c", own])

    def crash(self, node: str) -> None:
        """End all processes of a node by SIGKILL, its daemon and users' processes at once."""
        own = self._namespace(self.daemons[node].pid)
        for pid in self.processes():
            if self._namespace(pid) == own:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.daemons[node].wait()

    def back(self, node: str, seconds: float = 60.0) -> None:
        """Start a node again that has crashed, or was set down; wait until all are idle."""
        if self.daemons[node].poll() is not None:
            self.start_node(node)
        self.root(["scontrol", "update", f"nodename={node}", "state=resume"])
        self._until(self._idle, node, seconds)

    def stop(self, seconds: float = 30.0) -> list[str]:
        """End all processes of this site; returns what users had left before that."""
        left = []
        with contextlib.suppress(Exception):  # daemons may have ended already
            left = self.left(seconds=0)
            self.root(["scancel", f"--user={USER}"])
            self.left(seconds)
        for name in (*NODES, "slurmctld", "munged"):
            if name in self.daemons:
                self.daemons[name].terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.daemons[name].wait(seconds)
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for daemon in self.daemons.values():
                daemon.poll()
            time.sleep(0.05)
        return left

    # Commands --------------------------------------------------------------------------------

    def popen(self, command: Sequence[str], **keywords) -> subprocess.Popen:
        """Start a command on the login node as the user, in their home."""
        env = keywords.pop("env", {})
        enter = [*self._inside(), "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        keywords = {"text": True, "stdin": subprocess.DEVNULL, "cwd": self.home} | keywords
        return subprocess.Popen([*enter, *command], env=self.environment() | env, **keywords)

    def run(self, command: Sequence[str], seconds: float = 120.0, **keywords):
        """Run a command as the user; its CompletedProcess, with stdout and stderr."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.popen(command, **pipes | keywords) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def root(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as root."""
        env = self.environment() | {"HOME": "/"}
        return subprocess.run(
            [*self._inside(), *command], env=env, capture_output=True, text=True, timeout=60
        )

    def environment(self) -> dict[str, str]:
        """A login's environment, with this Python first on PATH."""
        return {
            "HOME": str(self.home),
            "USER": USER,
            "LANG": "C.UTF-8",
            "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }

    # What there is ---------------------------------------------------------------------------

    def left(self, seconds: float = 10.0) -> list[str]:
        """What users have left after `seconds`: jobs, processes, files in the nodes' /dev/shm."""
        deadline = time.monotonic() + seconds
        while True:
            queued = self.root(["squeue", "--noheader", "--format=job %i: %j %T"]).stdout
            left = queued.splitlines()
            left += [f"process {pid}: {name}" for pid, name in self.processes(UID).items()]
            for node in NODES:
                left += [f"/dev/shm/{name} on {node}" for name in self.shared_memory(node)]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.2)

    def processes(self, uid: int | None = None) -> dict[int, str]:
        """{pid: command} of this site's processes, by their mount namespaces; of `uid` if given."""
        own = {self._namespace(daemon.pid) for daemon in self.daemons.values()}
        own |= getattr(self, "_known", set())
        self._known = own = own - {None, self._namespace(os.getpid())}
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if self._namespace(int(name)) in own and uid in (
                    None,
                    os.stat(f"/proc/{name}").st_uid,
                ):
                    found[int(name)] = Path(f"/proc/{name}/cmdline").read_text().replace("\0", " ")
        return {pid: command for pid, command in found.items() if command}  # without zombies

    def shared_memory(self, node: str) -> list[str]:
        """Names of the files in the /dev/shm of a node."""
        daemon = self.daemons[node]
        if daemon.poll() is not None:
            return []
        return sorted(os.listdir(f"/proc/{daemon.pid}/root/dev/shm"))

    def log(self) -> str:
        """The ends of the daemons' logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    # -----------------------------------------------------------------------------------------

    def _write_files(self) -> None:
        for name in ("munge", "state", "home", "etc", *(f"slurmd.{node}" for node in NODES)):
            (self.folder / name).mkdir()
        (self.folder / "munge" / "key").write_bytes(os.urandom(128))
        (self.folder / "munge" / "key").chmod(0o400)
        shutil.chown(self.folder / "munge", "munge", "munge")
        shutil.chown(self.folder / "munge" / "key", "munge", "munge")
        shutil.chown(self.folder / "state", "slurm")
        os.chown(self.home, UID, UID)
        for name, line in {
            "passwd": f"{USER}:x:{UID}:{UID}::{self.home}:/bin/bash",
            "group": f"{USER}:x:{UID}:",
            "hosts": f"127.0.0.1 {' '.join(NODES)}",
        }.items():
            (self.folder / "etc" / name).write_text(Path("/etc", name).read_text() + line + "\n")
        with contextlib.ExitStack() as sockets:
            held = [sockets.enter_context(socket.socket()) for _ in range(1 + len(NODES))]
            for each in held:
                each.bind(("127.0.0.1", 0))
            ports = [each.getsockname()[1] for each in held]
        conf = self.folder / "slurm.conf"
        conf.write_text(CONF.format(folder=self.folder, ports=ports))

    def _inside(self) -> list[str]:
        return ["nsenter", f"--target={self.daemons['namespace'].pid}", "--mount", "--wd=."]

    def _start(self, name: str, command: list[str]) -> None:
        with open(self.folder / f"{name}.out.log", "ab") as out:
            self.daemons[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                env=self.environment() | {"HOME": "/"}, start_new_session=True,
            )  # fmt: skip

    def _idle(self) -> bool:
        return self.root(["sinfo", "-h", "-o", "%T %D"]).stdout.strip() == f"idle {len(NODES)}"

    def _until(self, ready, what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            dead = [name for name, one in self.daemons.items() if one.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come up ({dead} ended)\n{self.log()}")
            time.sleep(0.1)

    @staticmethod
    def _namespace(pid: int) -> str | None:
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{pid}/ns/mnt")
        return None


def main() -> None:
    if lacks := missing():
        sys.exit(lacks)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    site = Site(folder)
    try:
        site.start()
        variables = [f"{name}={value}" for name, value in site.environment().items()]
        enter = [*site._inside(), "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(f"Slurm is up; a shell of a user there, from {site.home}:")
        print(
            f"cd {site.home} && {shlex.join([*enter, 'env', '-i', *variables, 'bash'])}", flush=True
        )
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    finally:
        for line in site.stop():
            print("left:", line)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
