"""Cells of tests: messages as one receives them, without any engine, and cells that must fail."""

from __future__ import annotations

import base64

import clock
import pytest

from tutorial_dl.cluster.cell_errors import CellError
from tutorial_dl.cluster.cell_layout import layout, lines_of
from tutorial_dl.cluster.cell_output import Output

OFFER = "c.restart() gives new engines (their variables are lost)"


def message(kind: str, **content) -> dict:
    """A message as an engine publishes it."""
    return {"header": {"msg_type": kind}, "content": content}


def text(said: str, name: str = "stdout") -> dict:
    return message("stream", name=name, text=said)


def shown(kind: str = "display_data", name: str | None = None, **data) -> dict:
    """A message with something displayed, in the formats `text`, `png`, `html`, ..."""
    types = {"text": "text/plain", "png": "image/png", "html": "text/html", "svg": "image/svg+xml"}
    transient = {} if name is None else {"display_id": name}
    bundle = {types.get(key, key): each for key, each in data.items()}
    return message(kind, data=bundle, metadata={}, transient=transient)


def output_of(**messages) -> Output:
    """The output after these messages: r0=[...], r1=[...], each a string (stdout) or a message."""
    output = Output(int(rank[1:]) for rank in messages)
    for rank, each in messages.items():
        for one in each:
            output.receive(int(rank[1:]), text(one) if isinstance(one, str) else one)
    return output


def lines(groupby: str = "order", **messages) -> list[str]:
    return lines_of(layout(output_of(**messages).snapshot(), groupby))


def png(letter: str) -> str:
    return base64.b64encode(letter.encode()).decode()


def text_at_end(messages) -> str:
    """What a notebook shows after a kernel's messages: an updated display stands where it was."""
    texts: dict[object, str] = {}
    for number, message in enumerate(messages):
        content = message["content"]
        name = content.get("transient", {}).get("display_id") or number
        texts[name] = content.get("text", "") + content.get("data", {}).get("text/plain", "")
    return "".join(texts.values())


def failing(c, code: str, kind: type = CellError, took: str = "", **options) -> list[str]:
    """The lines of the error that a cell must end with; `took` labels its seconds."""
    with pytest.raises(kind) as error, clock.seconds(took):
        c.run(code, **{"timeout": 300, **options})  # so that a test cannot hang
    return error.value.summary
