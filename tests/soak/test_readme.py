"""The sections of README.md for notebooks work when they are pasted, cell by cell."""

import nbformat
from nbclient import NotebookClient
from readme_cells import pasted

CHANGE = 'from pathlib import Path; f = Path("my_file.py")\n' + (
    'f.write_text(f.read_text().replace("width=64", "width=65"))'
)
COUNT = "%%px\nprint(my_file.build().count_params())"


def shown(cell) -> str:
    """All text that a cell shows."""
    parts = [each.get("text") or each.get("data", {}) for each in cell.outputs]
    return "".join(each if isinstance(each, str) else "".join(each.values()) for each in parts)


def test_train_plot_save_reload_compare(tmp_path, monkeypatch):
    monkeypatch.setenv("IPP_NONINTERACTIVE", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = [*pasted(), CHANGE, COUNT, "c.stop()"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(book, timeout=600, kernel_name="python3", resources=resources).execute()
    by_code = {cell.source: shown(cell) for cell in book.cells}
    assert (tmp_path / "m.keras").stat().st_size > 10_000
    (trained,) = [text for code, text in by_code.items() if "%autoreload 2" in code]
    assert "epoch 10 of 10" in trained and "<polyline" in trained
    figures = [text for code, text in by_code.items() if "history.plot(" in code]
    assert len(figures) == 2 and all("Figure" in text for text in figures)
    (called,) = [text for code, text in by_code.items() if "c.run(shifted" in code]
    assert "[3.1, 3.1]" in called
    (kept,) = [text for code, text in by_code.items() if "load_model" in code]
    assert "Skipping" not in kept and "accuracy: 0.9" in kept  # it goes on, from 0.93 or so
    assert str(64 * 65 + 65 + 65 * 10 + 10) in by_code[COUNT]  # the file as it is now
