"""`Log`: a row per epoch as soon as it ends: in a file, for TensorBoard, or for a service."""

import csv
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from .. import __version__
from ..options import LOGS, check_log
from ..runtime.callback import Callback


class Log(Callback):
    """Writes the rows of the history on rank 0, each at once, so that a killed run leaves them.

    Args:
        path: *.csv: a line an epoch, with the time. *.jsonl: a JSON object a line, the first one
            about the run (time, host, version, command, git state). "wandb" or "mlflow": a run of
            that service, by its own library and settings. Anything else: a folder, for TensorBoard.
            A run that is resumed appends to its file; any other replaces it.
    """

    def __init__(self, path: str | Path):
        check_log(path)
        self.path, self._begun = Path(path), False
        self._writer = (
            SERVICES.get(str(path), Board)(path) if self.path.suffix not in LOGS else None
        )

    def on_fit_begin(self, trainer) -> None:
        if trainer.team.rank:
            return
        about = about_run(trainer)
        if self._writer is not None:
            self._writer.begin(about)
        elif not self._begun:
            if not trainer.history.epochs:
                self.path.write_text("")
            if self.path.suffix == ".jsonl":
                self._append(json.dumps({"run": about}))
        self._begun = True

    def on_epoch_end(self, trainer, row: dict) -> None:
        if trainer.team.rank:
            return
        row = {name: value for name, value in row.items() if isinstance(value, int | float | str)}
        if self._writer is not None:
            self._writer.add(
                trainer.steps, {n: v for n, v in row.items() if not isinstance(v, str)}
            )
            return
        row = {"time": now()} | row
        if self.path.suffix == ".jsonl":
            self._append(json.dumps(row))
        else:
            self._append_csv(row)

    def on_fit_end(self, trainer) -> None:
        if self._writer is not None and not trainer.team.rank:
            self._writer.end()

    def _append(self, line: str) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _append_csv(self, row: dict) -> None:
        with open(self.path, "a+", encoding="utf-8", newline="") as file:
            file.seek(0)
            names = next(csv.reader(file), None)
            table = csv.DictWriter(file, names or list(row), extrasaction="ignore")
            if names is None:
                table.writeheader()
            table.writerow(row)

    def __repr__(self) -> str:
        return f"Log({str(self.path)!r})"


class Service:
    """A run of a service that keeps logs, which its own library writes.

    Where a run of the library is active, rows go there, and its owner ends it. Otherwise a run
    lasts from the beginning of `fit` to its end, and goes on when `fit` is called again; after
    --resume, too, if the library's own variables name it: WANDB_RUN_ID with WANDB_RESUME=allow, or
    MLFLOW_RUN_ID.
    """

    begun: ClassVar[set[str]] = set()  # runs that are ours, until `fit` ends without an error

    def __init__(self, name: str | Path):
        self.name, self.run, self.id = str(name), None, None
        found = find_spec(self.name)
        if found is None or found.origin is None:  # a folder of this name is no library
            raise ModuleNotFoundError(f"log {self.name!r} needs {self.name}", name=self.name)

    @property
    def module(self):
        return import_module(self.name)

    def begin(self, about: dict) -> None:
        self.run = self.active()
        if self.run is not None and self.id_of(self.run) in self.begun:  # that `fit` has failed
            self.finish(failed=True)
        if self.run is None:
            self.run = self.start(about)
            self.id = self.id_of(self.run)
            self.begun.add(self.id)

    def end(self) -> None:
        if self.run is not None and self.id_of(self.run) in self.begun:
            self.finish()

    def finish(self, failed: bool = False) -> None:
        self.begun.discard(self.id_of(self.run))
        self.close(failed)
        self.run = None


class WeightsAndBiases(Service):
    def active(self):
        return self.module.run

    def id_of(self, run) -> str:
        return run.id

    def start(self, about: dict):
        again = {"id": self.id, "resume": "allow"} if self.id else {}
        return self.module.init(config=about, **again)

    def add(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(numbers, step=step)

    def close(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class MLflow(Service):
    def active(self):
        return self.module.active_run()

    def id_of(self, run) -> str:
        return run.info.run_id

    def start(self, about: dict):
        run = self.module.start_run(run_id=self.id)
        if not run.data.params:  # those of a run that goes on can't be changed
            self.module.log_params({n: value for n, value in about.items() if n != "time"})
        return run

    def add(self, step: int, numbers: dict[str, float]) -> None:
        self.module.log_metrics(numbers, step=step)

    def close(self, failed: bool) -> None:
        self.module.end_run("FAILED" if failed else "FINISHED")


class Board:
    """Files for TensorBoard, in a folder."""

    def __init__(self, folder: str | Path):
        if find_spec("tensorboard") is None:
            raise ModuleNotFoundError(
                f"a log in folder {folder} needs tensorboard", name="tensorboard"
            )
        self.folder, self.writer = str(folder), None

    def begin(self, about: dict) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self.writer is None:
            self.writer = EventFileWriter(self.folder)
            self._write(0, {"run": json.dumps(about)}, {})

    def add(self, step: int, numbers: dict[str, float]) -> None:
        self._write(step, {}, numbers)

    def end(self) -> None:
        if self.writer is not None:
            self.writer.flush()

    def _write(self, step: int, texts: dict[str, str], numbers: dict[str, float]) -> None:
        """Add an event: texts, and numbers by step, for TensorBoard's pages of these names."""
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2

        values = [summary_pb2.Summary.Value(tag=n, simple_value=v) for n, v in numbers.items()]
        for name, text in texts.items():
            plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
            tensor = tensor_pb2.TensorProto(
                dtype=types_pb2.DT_STRING, string_val=[text.encode()]
            )  # fmt: skip
            metadata = summary_pb2.SummaryMetadata(plugin_data=plugin)
            values.append(summary_pb2.Summary.Value(tag=name, metadata=metadata, tensor=tensor))
        wall = datetime.now().timestamp()
        summary = summary_pb2.Summary(value=values)
        self.writer.add_event(event_pb2.Event(wall_time=wall, step=step, summary=summary))
        self.writer.flush()


SERVICES = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def about_run(trainer) -> dict[str, Any]:
    """When, where and how a run was started: values that JSON can hold."""
    return {
        "time": now(),
        "host": socket.gethostname(),
        "version": __version__,
        "python": sys.version.split()[0],
        "command": sys.argv,
        "folder": os.getcwd(),
        "git": git_state(),
        "strategy": trainer.strategy.name,
        "ranks": trainer.team.size,
        "parameters": sum(one.size for one in trainer.strategy.holding.whole),
        "optimizer": trainer.optimizer.name,
        "batch_size": trainer.run.batch_size,
    }


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def git_state() -> str | None:
    """The commit of the working folder, with " (changed)" if files have changed; None without."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        return git("rev-parse", "HEAD") + " (changed)" * bool(git("status", "--porcelain", "-uno"))
    return None
