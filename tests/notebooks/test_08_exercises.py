"""Notebook 08: the cells that may fail are followed by cells that check how they failed."""

from notebook_cells import Notebook

NOTEBOOK = Notebook("08")


def test_a_cell_that_may_fail_is_followed_by_one_that_checks_how():
    """The tag alone would let any error pass, or none."""
    code = [cell for cell in NOTEBOOK.all if cell["cell_type"] == "code"]
    faults = [
        k for k, cell in enumerate(code) if "raises-exception" in cell["metadata"].get("tags", [])
    ]
    assert len(faults) >= 5
    for k in faults:
        following = "".join(code[k + 1]["source"])
        assert following.startswith("error = sys.last_value\n") and "\nassert " in following
