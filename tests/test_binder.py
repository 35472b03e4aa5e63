"""The files in binder/ are those that repo2docker reads, and say what is there.

tests/soak/test_binder.py follows its steps and runs notebooks in a session.
"""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from commands_in_text import wrong
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
BINDER = ROOT / "binder"
# Files for which repo2docker would choose another way to build, or install something else first.
OTHERS = """
Dockerfile environment.yml environment.yaml Pipfile Pipfile.lock requirements.txt setup.py
Project.toml REQUIRE default.nix install.R DESCRIPTION apt.txt
"""


def test_repo2docker_reads_runtime_postbuild_and_start():
    names = {file.name for file in BINDER.iterdir()}
    assert {"runtime.txt", "postBuild", "start", "README.md"} <= names
    assert not names & set(OTHERS.split()) and not (ROOT / ".binder").exists()
    name, version = (BINDER / "runtime.txt").read_text().strip().split("-")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert name == "python" and version in SpecifierSet(project["requires-python"])
    assert re.fullmatch(r"3\.\d+", version)  # repo2docker wants both numbers, and no third


def test_scripts_can_be_run():
    for name in ("postBuild", "start"):
        text = (BINDER / name).read_text()
        assert os.access(BINDER / name, os.X_OK) and text.startswith("#!/bin/bash\n")
        assert "set -euo pipefail" in text  # else a failed build would be an image
        subprocess.run(["bash", "-n", BINDER / name], check=True)


def test_post_build_runs_commands_that_are_there():
    text = (BINDER / "postBuild").read_text()
    install, run = [line for line in text.splitlines() if line.startswith("python -m")]
    extras = re.search(r"'\.\[(.*?)\]'", install)[1].split(",")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= project["optional-dependencies"].keys()
    assert "--constraint constraints.txt" in install and (ROOT / "constraints.txt").exists()
    assert not wrong(run, set())


def test_start_hands_over_to_the_server(tmp_path):
    """It becomes the command, with its arguments as they are, and one thread for each library."""
    code = 'for each; do echo "<$each>"; done; echo $OMP_NUM_THREADS $TF_NUM_INTRAOP_THREADS $$'
    process = subprocess.Popen(
        [BINDER / "start", "sh", "-c", code, "sh", "a b", ""],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    said, _ = process.communicate(timeout=60)
    assert said.splitlines() == ["<a b>", "<>", f"1 1 {process.pid}"]
    assert subprocess.run([BINDER / "start", "sh", "-c", "exit 7"]).returncode == 7


def links(text: str) -> list[str]:
    return re.findall(r"https://mybinder\.org/v2/[^\s)`\"]+", text)


def test_links_open_a_notebook_that_is_there():
    text = (BINDER / "README.md").read_text()
    assert len(links(text)) >= 3
    for link in links(text):
        parts = urlsplit(link)
        provider, rest = parts.path.removeprefix("/v2/").split("/", 1)
        assert provider in ("gh", "git") and rest.endswith("/HEAD")
        assert rest.count("/") == (2 if provider == "gh" else 1)
        (place,) = parse_qs(parts.query)["urlpath"]
        assert place.startswith("lab/tree/") and (ROOT / place.removeprefix("lab/tree/")).exists()
