"""Cells that must fail."""

from __future__ import annotations

import clock
import pytest

from tutorial_dl.cluster.cell_errors import CellError

OFFER = "c.restart() gives new engines (their variables are lost)"


def failing(c, code: str, kind: type = CellError, took: str = "", **options) -> list[str]:
    """The lines of the error that a cell must end with; `took` labels its seconds."""
    with pytest.raises(kind) as error, clock.seconds(took):
        c.run(code, **{"timeout": 300, **options})  # so that a test cannot hang
    return error.value.summary
