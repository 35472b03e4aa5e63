"""A JupyterLab server, and notebooks whose cells run there as in the browser: by its interface."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import requests
import websocket

SECONDS = 600
TOKEN = "of-a-test"
# Port 0: the system chooses a free one. As root, a server must be told that this is meant.
COMMAND = [
    *("jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"),
    f"--IdentityProvider.token={TOKEN}",
]


class CellError(Exception):
    """A cell has raised an error."""


class Lab:
    """The server at `url`, which takes `token`."""

    def __init__(self, url: str, token: str = TOKEN):
        self.url, self.token = url.rstrip("/"), token
        self.headers = {"Authorization": f"token {token}"}  # a hub takes none in the address

    def ask(self, method: str, path: str, content: object = None):
        answer = requests.request(
            method, self.url + path, json=content, headers=self.headers, timeout=SECONDS
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def open(self, path: str) -> Notebook:
        """Start the kernel of the notebook at `path`, which is relative to the server's folder."""
        return Notebook(self, path)


def started(process: Popen, home: Path) -> Lab:
    """The server that `process` becomes, when it answers; its user's home is `home`."""
    deadline = time.monotonic() + SECONDS
    runtime = home / ".local/share/jupyter/runtime"
    while True:
        assert process.poll() is None, f"the server ended with status {process.returncode}"
        assert time.monotonic() < deadline, "the server does not answer"
        for file in runtime.glob("jpserver-*.json"):
            try:
                lab = Lab(json.loads(file.read_text())["url"])
                lab.ask("GET", "/api/status")
                return lab
            except (ValueError, KeyError, requests.RequestException):
                pass  # the file is not complete, or the server does not listen yet
        time.sleep(0.1)


class Notebook:
    """A notebook's kernel."""

    def __init__(self, lab: Lab, path: str):
        self.lab = lab
        about = {"path": path, "name": Path(path).name, "type": "notebook"}
        made = lab.ask("POST", "/api/sessions", about | {"kernel": {"name": "python3"}})
        self.session, self.kernel = made["id"], made["kernel"]["id"]
        url = f"{lab.url}/api/kernels/{self.kernel}/channels".replace("http", "ws", 1)
        self.link = websocket.create_connection(url, header=lab.headers, timeout=SECONDS)

    def run(self, code: str, seen: Callable[[list[dict]], None] = lambda _: None) -> str:
        """Run a cell, and return all text that it has shown; raises CellError.

        seen: called with all messages so far when one has come.
        """
        header = {
            "msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3",
            "username": "", "session": "a-test", "date": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }  # fmt: skip
        content = {"code": code, "silent": False, "store_history": True, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self.link.send(json.dumps(message | {"channel": "shell", "buffers": []}))
        messages, reply, idle = [], None, False
        while reply is None or not idle:
            came = json.loads(self.link.recv())
            if came["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            if came["channel"] == "shell":
                reply = came["content"]
            elif came["header"]["msg_type"] == "status":
                idle = came["content"]["execution_state"] == "idle"
            else:
                messages.append(came)
                seen(messages)
        if reply["status"] != "ok":
            raise CellError(f"{reply['ename']}: {reply['evalue']}\n{code}")
        return text(messages)

    def interrupt(self) -> None:
        self.lab.ask("POST", f"/api/kernels/{self.kernel}/interrupt")

    def close(self) -> None:
        """End the kernel."""
        self.link.close()
        self.lab.ask("DELETE", f"/api/sessions/{self.session}")


def text(messages: list[dict]) -> str:
    """All text in a cell's outputs: printed, or of what it displays, as text, HTML or SVG."""
    parts = []
    for message in messages:
        content = message["content"]
        data = content.get("data", {})
        parts += [content.get("text", ""), *(data[kind] for kind in data if "text/" in kind)]
    return "\n".join(map(str, parts))
