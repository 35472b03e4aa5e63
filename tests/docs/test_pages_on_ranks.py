"""The programs of docs/add_*.md that need ranks. (Ranks import this file, without helpers.)"""

import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_programs_of_pages_run_on_ranks(on_ranks, tmp_path):
    from page_programs import programs

    for name in ("add_a_strategy", "add_an_allreduce"):
        for _ in programs(DOCS / f"{name}.md", tmp_path):
            pass  # they are written
    on_ranks(3, run_files, str(tmp_path), ["train.py", "try_it.py"])


def run_files(folder, files):
    sys.path.insert(0, folder)
    try:
        for file in files:
            code = compile(Path(folder, file).read_text(), file, "exec")
            exec(code, {"__name__": "__main__"})
    finally:
        sys.path.remove(folder)
        for name in ("my_rule", "along_a_line"):
            sys.modules.pop(name, None)
