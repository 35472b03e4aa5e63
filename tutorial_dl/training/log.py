"""`Log`: a row per epoch in a file, as soon as the epoch ends, or in a folder for TensorBoard."""

import csv
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .. import __version__
from ..options import LOGS, check_log
from ..runtime.callback import Callback


class Log(Callback):
    """Writes the rows of the history on rank 0, each at once, so that a killed run leaves them.

    Args:
        path: *.csv: a line an epoch, with the time. *.jsonl: a JSON object a line, the first one
            about the run (time, host, version, command, git state). Anything else: a folder, for
            TensorBoard. A run that is resumed appends to its file; any other replaces it.
    """

    def __init__(self, path: str | Path):
        check_log(path)
        if Path(path).suffix not in LOGS and find_spec("tensorboard") is None:
            raise ModuleNotFoundError(
                f"a log in folder {path} needs tensorboard", name="tensorboard"
            )
        self.path, self._begun = Path(path), False
        self._writer: Any = None  # of TensorBoard

    def on_fit_begin(self, trainer) -> None:
        if trainer.team.rank or self._begun:
            return
        self._begun, about = True, about_run(trainer)
        if self.path.suffix not in LOGS:
            self._writer = _board(self.path)
            self._write_event(0, {"run": json.dumps(about)}, {})
        elif not trainer.history.epochs:
            self.path.write_text("")
        if self.path.suffix == ".jsonl":
            self._append(json.dumps({"run": about}))

    def on_epoch_end(self, trainer, row: dict) -> None:
        if trainer.team.rank:
            return
        row = {name: value for name, value in row.items() if isinstance(value, int | float | str)}
        if self._writer is not None:
            self._write_event(trainer.steps, {}, row)
            return
        row = {"time": now()} | row
        if self.path.suffix == ".jsonl":
            self._append(json.dumps(row))
        else:
            self._append_csv(row)

    def on_fit_end(self, trainer) -> None:
        if self._writer is not None:
            self._writer.flush()

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

    def _write_event(self, step: int, texts: dict[str, str], numbers: dict[str, float]) -> None:
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
        self._writer.add_event(event_pb2.Event(wall_time=wall, step=step, summary=summary))
        self._writer.flush()

    def __repr__(self) -> str:
        return f"Log({str(self.path)!r})"


def _board(folder: Path):
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(str(folder))


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
