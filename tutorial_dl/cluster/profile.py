"""Profiles: how and where a cluster's engines run, as a TOML file that a site can change.

    kind = "submit"   # a job of its own; or "allocation": in our own job; or "local"
    system = "slurm"
    queue = "short"
    launcher = "srun --mpi={pmi} --ntasks={n}"

`start(profile="short")` looks for short.toml in the user's folder and then among those in this
package; `start(profile="site/short.toml")` takes that file. Every key is checked when it is read;
an error is one line with the file, the key, its value and what was expected.
"""

from __future__ import annotations  # `fits` reads the types of fields as text

import contextlib
import importlib.util
import ipaddress
import os
import re
import socket
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .batch_job import SYSTEMS
from .mpi_launcher import PLACE

SHIPPED = Path(__file__).with_name("profiles")
KINDS = ("local", "allocation", "submit")
HERE, BATCH, AWAY, ALL = ("local",), ("submit",), ("allocation", "submit"), KINDS


class ProfileError(ValueError):
    """One line: the profile's file, the key, its value and what was expected."""


def key(default: Any, right: str, kinds: tuple[str, ...] = ALL) -> Any:
    """A key of a profile: its default, its values in words, and the kinds that have it."""
    return field(default=default, metadata={"right": right, "kinds": kinds})


@dataclass(frozen=True)
class Profile:
    """The contents of a profile. docs/clusters.md explains each key."""

    name: str
    file: Path
    kind: str = key("local", " or ".join(f'"{k}"' for k in KINDS))
    system: str = key("", " or ".join(f'"{s}"' for s in SYSTEMS), BATCH)
    launcher: str = key("", 'a command that starts ranks, such as "mpiexec -n {n}"', AWAY)
    interface: str = key("loopback", '"host", an interface such as "ib0", or an address', AWAY)
    encrypt: bool = key(True, "true or false")
    keep: float | None = key(None, "a number of seconds above 0")
    timeout: float | None = key(None, "a number of seconds above 0")
    preload: tuple[str, ...] = key((), 'a list of installed modules, such as ["keras"]', HERE)
    cores_per_rank: int = key(1, "a whole number above 0", AWAY)
    nodes: int | None = key(None, "a whole number above 0", BATCH)
    ranks_per_node: int | None = key(None, "a whole number above 0", BATCH)
    queue: str = key("", "a queue's or partition's name", BATCH)
    account: str = key("", "the account or project that pays", BATCH)
    time: str = key("", '"HH:MM:SS"', BATCH)
    resources: str = key("", 'PBS\'s resources, such as "select={nodes}:ncpus=4"', BATCH)
    modules: tuple[str, ...] = key((), 'a list of names, such as ["openmpi"]', BATCH)
    setup: tuple[str, ...] = key((), "a list of shell lines", BATCH)
    directives: tuple[str, ...] = key((), 'a list of options, such as ["--exclusive"]', BATCH)

    def wrong(self, name: str, value: Any, right: str) -> ProfileError:
        return ProfileError(f"{self.file}: {name} = {value!r}: expected {right}")

    @property
    def patience(self) -> float:
        """Default seconds to wait for the engines: longer for a job in a queue."""
        return self.timeout or (600.0 if self.kind == "submit" else 60.0)

    @property
    def lease(self) -> float | None:
        """Seconds that a cluster lives without a client; None: it ends with its kernel."""
        return 600.0 if self.keep is None and self.kind == "submit" else self.keep

    def shape(self, n: int) -> dict[str, int]:
        """The values of `{...}` in launcher and resources, for `n` ranks."""
        per_node = self.ranks_per_node or -(-n // (self.nodes or 1))
        nodes = self.nodes or -(-n // per_node)
        if n > nodes * per_node:
            raise ProfileError(
                f"{self.file}: nodes = {nodes} with ranks_per_node = {per_node} hold "
                f"{nodes * per_node} ranks, not {n}: start fewer ranks, or raise one of the keys"
            )
        shape = {"n": n, "nodes": nodes, "ranks_per_node": per_node}
        cores = self.cores_per_rank
        return shape | {"cores_per_rank": cores, "cores_per_node": per_node * cores}

    def fill(self, text: str, n: int) -> str:
        """`text` with values for `{...}`; `{pmi}` stays, because only the ranks' node can tell."""
        return text.format_map(self.shape(n) | {"pmi": PLACE})

    def address(self) -> str:
        """The IPv4 address that the controller listens on."""
        if self.interface == "loopback":
            return "127.0.0.1"
        with contextlib.suppress(ValueError):
            return str(ipaddress.IPv4Address(self.interface))
        import psutil

        found = {
            name: each.address
            for name, addresses in psutil.net_if_addrs().items()
            for each in addresses
            if each.family == socket.AF_INET
        }
        if self.interface in found:
            return found[self.interface]
        if self.interface != "host":
            right = f"one of {', '.join(sorted(found))}, or an address"
            raise self.wrong("interface", self.interface, right)
        with_name = set()
        with contextlib.suppress(OSError):
            with_name = {socket.gethostbyname(socket.gethostname())} & set(found.values())
        # Many hosts resolve their own name to 127.0.1.1; then use their only interface.
        for candidates in (with_name, set(found.values())):
            outside = {ip for ip in candidates if not ip.startswith("127.")}
            if len(outside) == 1:
                return outside.pop()
        choice = [f'"{name}"' for name, ip in found.items() if not ip.startswith("127.")]
        right = f"one of {', '.join(choice)}, as this host has several"
        raise self.wrong("interface", "host", right)


FIELDS = {f.name: f for f in fields(Profile) if "kinds" in f.metadata}


def user_folder() -> Path:
    """Where a user's own profiles are."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "tutorial_dl" / "profiles"


def available() -> dict[str, Path]:
    """Files of all profiles by name; the user's replace those of the package."""
    found: dict[str, Path] = {}
    for folder in (SHIPPED, user_folder()):
        found.update({file.stem: file for file in sorted(folder.glob("*.toml"))})
    return found


def load(name: str | Path) -> Profile:
    """Read and check the profile of this name, or in this file (a path that ends in .toml)."""
    file = Path(name).expanduser()
    if file.suffix != ".toml":
        files = available()
        if str(name) not in files:
            raise ProfileError(
                f"there is no profile {str(name)!r}; choose one of {', '.join(files)} or a .toml "
                f"file; your own profiles go to {user_folder()}"
            )
        file = files[str(name)]
    try:
        table = tomllib.loads(file.read_text())
    except OSError as error:
        raise ProfileError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{file} is not TOML: {error}") from None
    return check(Profile(file.stem, file), table)


def check(empty: Profile, table: dict[str, Any]) -> Profile:
    """`empty` with the keys of `table`; raises ProfileError if one of them is wrong."""
    kind = table.get("kind")
    if kind not in KINDS:
        raise empty.wrong("kind", kind, FIELDS["kind"].metadata["right"])
    allowed = [name for name, f in FIELDS.items() if kind in f.metadata["kinds"]]
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in FIELDS:
            raise empty.wrong(name, value, f"one of the keys {', '.join(allowed)}")
        if name not in allowed:
            right = f'one of the keys {", ".join(allowed)} with kind = "{kind}"'
            raise empty.wrong(name, value, right)
        if not fits(name, value):
            raise empty.wrong(name, value, FIELDS[name].metadata["right"])
        values[name] = tuple(value) if isinstance(value, list) else value
    profile = Profile(empty.name, empty.file, **values)
    required = {"launcher": kind != "local", "system": kind == "submit"}
    required["resources"] = profile.system == "pbs"
    for name, needed in required.items():
        if needed and not getattr(profile, name):
            raise profile.wrong(name, None, FIELDS[name].metadata["right"])
    for name in ("launcher", "resources"):
        try:
            profile.fill(getattr(profile, name), 1)
        except (KeyError, ValueError, IndexError):
            words = [*profile.shape(1), *(["pmi"] if name == "launcher" else [])]
            known = ", ".join(f"{{{word}}}" for word in words)
            right = f"only {known} in braces (write $NAME for shell variables)"
            raise profile.wrong(name, getattr(profile, name), right) from None
    try:  # a module's top package; deeper ones would be imported to find them
        missing = None in (importlib.util.find_spec(m.partition(".")[0]) for m in profile.preload)
    except ValueError:  # such as "__main__", or an empty name
        missing = True
    if missing:
        raise profile.wrong("preload", list(profile.preload), FIELDS["preload"].metadata["right"])
    if profile.launcher and "{n}" not in profile.launcher:
        raise profile.wrong("launcher", profile.launcher, "a command with {n}, the ranks")
    if profile.resources and profile.system != "pbs":
        raise profile.wrong("resources", profile.resources, 'directives instead, unless system = '
                            '"pbs"')  # fmt: skip
    return profile


def fits(name: str, value: Any) -> bool:
    """Whether `value` has the type and range of key `name`."""
    wants = FIELDS[name].type
    if wants.startswith("tuple"):
        return isinstance(value, list) and all(isinstance(v, str) and "\n" not in v for v in value)
    if isinstance(value, bool) or wants.startswith("bool"):
        return isinstance(value, bool) and wants.startswith("bool")
    if wants.startswith(("int", "float")):
        number = int if wants.startswith("int") else (int, float)
        return isinstance(value, number) and 0 < value < 1e9
    if name == "time":
        return isinstance(value, str) and bool(re.fullmatch(r"\d{1,3}(:[0-5]\d){2}", value))
    choice = {"kind": KINDS, "system": SYSTEMS}.get(name, (value,))
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value and value in choice
