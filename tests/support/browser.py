"""Drives Chromium by its DevTools protocol: opens a page, clicks, takes pictures, logs requests."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import requests
import websocket

SECONDS = 300
# Chromium's own requests, for updates and the like, are of no interest here.
QUIET = """
--disable-background-networking --disable-component-update --disable-sync --disable-default-apps
--no-first-run --no-default-browser-check --disable-features=OptimizationHints,MediaRouter
"""


class Page:
    """`with Page() as page:` is a page of a new browser.

    Attributes:
        requests: Every address that the page has asked for, WebSockets included.
        said: What the page has written to its console as errors.
    """

    def __init__(self, width: int = 1280, height: int = 900):
        program = shutil.which("chromium")
        assert program, "needs Chromium (Debian: apt install chromium)"
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        self.requests: list[str] = []
        self.said: list[str] = []
        words = [program, "--headless=new", "--remote-debugging-port=0", *QUIET.split()]
        words += [f"--user-data-dir={self._folder.name}", f"--window-size={width},{height}"]
        # What its processes share lies in TMPDIR then; in /dev/shm it may be left behind.
        words += ["--disable-dev-shm-usage"]
        words += ["--no-sandbox"] * (os.geteuid() == 0) + ["about:blank"]
        self._process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"TMPDIR": self._folder.name},
        )  # fmt: skip
        self._number, self._link = 0, None

    def __enter__(self):
        try:
            self._connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _connect(self) -> None:
        file, deadline = Path(self._folder.name) / "DevToolsActivePort", time.monotonic() + SECONDS
        while not file.exists() or "\n" not in file.read_text():
            assert self._process.poll() is None, "Chromium ended at once"
            assert time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.05)
        port = file.read_text().split()[0]
        targets = requests.get(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS).json()
        (url,) = [each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page"]
        self._link = websocket.create_connection(url, timeout=SECONDS, suppress_origin=True)
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def __exit__(self, *_: object) -> None:
        try:
            if self._link is not None:
                self.call("Browser.close")
                self._process.wait(30)
        except (OSError, websocket.WebSocketException, subprocess.TimeoutExpired):
            pass
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def call(self, method: str, **parameters) -> dict:
        """A command of the protocol, and its result."""
        self._number += 1
        self._link.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            came = json.loads(self._link.recv())
            if came.get("id") == self._number:
                assert "error" not in came, (method, came["error"])
                return came["result"]
            self._note(came)

    def _note(self, event: dict) -> None:
        what, about = event.get("method"), event.get("params", {})
        if what == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif what == "Network.webSocketCreated":
            self.requests.append(about["url"])
        elif what == "Runtime.exceptionThrown":
            self.said.append(about["exceptionDetails"].get("text", ""))
        elif what == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.said.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def elsewhere(self) -> list[str]:
        """Addresses asked for that are not of this machine."""
        parts = {url: urlsplit(url) for url in self.requests}
        local = ("127.0.0.1", "localhost")
        inside = ("data", "blob", "about", "chrome")
        return [
            url for url, p in parts.items() if p.scheme not in inside and p.hostname not in local
        ]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, code: str):
        """The value of an expression of JavaScript, or of the promise that it gives."""
        done = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"].get("description", code))
        return done["result"].get("value")

    def until(self, code: str, seconds: float = SECONDS):
        """Wait until an expression is true, and return its value; it may fail meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if value := self.evaluate(code):
                    return value
                why = ""
            except RuntimeError as error:
                why = f": {error}"
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {code}{why}"
            time.sleep(0.1)

    def click(self, selector: str) -> None:
        """Press the mouse on the middle of the first element that a CSS selector finds."""
        find = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = self.until(f"(r => r.width && [r.x + r.width / 2, r.y + r.height / 2])({find})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, file: Path) -> None:
        """Write a PNG of what is to be seen."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
