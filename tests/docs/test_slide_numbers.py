"""Numbers on slides are taken from what commands write."""

import json

import pytest

import measure as numbers

PROGRAM = """
import json, sys
if sys.argv[2] == "fails":
    sys.exit("no such luck")
rows = [{{"what": what, "bytes": size, "ratio": ratio}} for what, size, ratio in {rows}]
result = {{"rows": rows, "seconds": 0.25, "val_accuracy": 0.98765}}
json.dump(result, open(sys.argv[1], "w"))
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
        numbers, "COMMANDS", dict.fromkeys(numbers.COMMANDS, f"stand_in FILE {how}")
    )


def test_numbers_have_their_command_and_what_they_are(program):
    program("works")
    found = numbers.measure()
    digits = ("digits_32", "digits_256", "digits_1024")
    assert found["numbers"] == {
        "allreduce_1mib": "7.1", "allreduce_64mib": "5.9",
        **{f"{name}_seconds": "0.25" for name in digits},
        **{f"{name}_accuracy": "98.8%" for name in digits},
    }  # fmt: skip
    assert found["commands"]["allreduce_1mib"] == "python -m stand_in FILE works"
    assert found["about"].keys() == found["numbers"].keys() and found["machine"]
    assert json.loads(json.dumps(found)) == found


def test_a_command_that_fails_is_an_error_with_its_last_line(program):
    program("fails")
    with pytest.raises(RuntimeError, match="python -m stand_in FILE fails: no such luck"):
        numbers.measure()
