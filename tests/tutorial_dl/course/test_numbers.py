"""Numbers on slides are taken from what commands write."""

import json

import pytest

from tutorial_dl.course import numbers

PROGRAM = """
import json, sys
if sys.argv[2] == "fails":
    sys.exit("no such luck")
rows = [{{"what": what, "bytes": size, "ratio": ratio}} for what, size, ratio in {rows}]
json.dump({{"rows": rows}}, open(sys.argv[1], "w"))
"""
ROWS = [
    (numbers.CYCLE, 2**20, 6.04), (numbers.CYCLE, 2**20, 7.06), (numbers.CYCLE, 2**26, 5.9),
    ("allreduce, repeated call", 2**20, 9.0),
]  # fmt: skip


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(PROGRAM.format(rows=ROWS))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda how: monkeypatch.setattr(
        numbers, "COMMANDS", {"allreduce": f"stand_in FILE {how}"}
    )


def test_numbers_have_their_command_and_what_they_are(program):
    program("works")
    found = numbers.measure()
    assert found["numbers"] == {"allreduce_1mib": "7.1", "allreduce_64mib": "5.9"}
    assert found["commands"]["allreduce_1mib"] == "python -m stand_in FILE works"
    assert found["about"].keys() == found["numbers"].keys() and found["machine"]
    assert json.loads(json.dumps(found)) == found


def test_a_command_that_fails_is_an_error_with_its_last_line(program):
    program("fails")
    with pytest.raises(RuntimeError, match="python -m stand_in FILE fails: no such luck"):
        numbers.measure()
