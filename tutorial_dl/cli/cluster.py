"""`python -m tutorial_dl cluster`: list, start and stop clusters from a terminal."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from .errors import one_line
from .parameters import flag

app = typer.Typer(
    no_args_is_help=True, help="List, start and stop clusters of engines for notebooks."
)
Name = Annotated[
    str | None, typer.Argument(help="Name of the cluster; not needed if only one runs.")
]


@app.command("list")
@one_line()
def show(
    json: flag("Print the clusters as JSON.", "--json") = False,
) -> None:
    """List the running clusters: name, engines, profile, host, state and age."""
    from ..cluster import tables

    entries = tables.list()
    print(json_format.dumps([entry._asdict() for entry in entries]) if json else entries)


@app.command()
@one_line()
def start(
    ranks: Annotated[int, typer.Option("-n", "--ranks", help="Number of engines to start.")] = 4,
    profile: Annotated[
        str, typer.Option(help="Name or TOML file of a profile; `cluster profiles` lists them.")
    ] = "local",
    name: Annotated[
        str | None, typer.Option(help="Name by which notebooks join the cluster.")
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            help="Seconds without a notebook after which the cluster stops; default: the "
            "profile's, or 3600."
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the engines; default: the profile's.")
    ] = None,
    force: flag("Start them even if they are too many for this machine.", "--force") = False,
) -> None:
    """Start a cluster and leave it running, so that notebooks can join it."""
    from numba_kernels import launch

    from ..cluster.profile import load

    launch.check_ranks(ranks)
    lease = load(profile).keep
    from ..cluster import notebook
    from ..cluster.tables import age

    keep = next(seconds for seconds in (keep, lease, 3600.0) if seconds is not None)
    cluster = notebook.start(ranks, timeout, profile=profile, name=name, keep=keep, force=force)
    cluster.disconnect()
    print(f'in a notebook: cluster.join("{cluster.name}"); within {age(keep)}, or it stops')


@app.command()
@one_line()
def stop(
    name: Name = None,
    all: flag("Stop all clusters.", "--all") = False,
) -> None:
    """Stop a cluster for all notebooks that use it."""
    from ..cluster import tables

    if all and name is not None:
        raise ValueError(f"give either --all or a name, got --all and {name!r}")
    names = [entry.name for entry in tables.list()] if all else [name]
    for each in names:
        print(f"stopped {tables.stop(each)}")


@app.command()
@one_line()
def profiles() -> None:
    """List the profiles, and the folder for your own."""
    from ..cluster import profile

    for name, file in profile.available().items():
        print(f"{name:<12} {file}")
    own = profile.user_folder()
    print(f"{'your own:':<12} {own}{'' if Path(own).is_dir() else ' (does not exist yet)'}")
