"""What may help with an error: a name that the notebook has, and the ranks do not."""

import ast
import re
from collections.abc import Mapping, Sequence
from types import ModuleType

from IPython import get_ipython

from .parcels import CannotSend, pack

MISSING = re.compile(r"name '(\w+)' is not defined")


def of_missing_name(failures: Mapping, cluster) -> list[str]:
    """One line on how ranks get the name that they miss, if this notebook has it; else none."""
    names = [MISSING.match(each.message) for each in failures.values() if each.name == "NameError"]
    shell = get_ipython()
    names = [match[1] for match in names if match]
    if not names or shell is None or names[0] not in shell.user_ns:
        return []
    name, value = names[0], shell.user_ns[names[0]]
    if name in shell.user_ns_hidden:  # IPython's own
        return []
    imported = _import_of(name, value, shell.user_ns.get("In", []))
    if imported:
        return [
            f"{name} is imported in the notebook, not on the ranks: write {imported} in a %%px cell"
        ]
    called = next((key for key, each in shell.user_ns.items() if each is cluster), "c")
    try:
        pack(value)
    except CannotSend:
        return [f"{name} exists in the notebook, not on the ranks: make it in a %%px cell"]
    return [
        f'{name} exists in the notebook, not on the ranks: {called}["{name}"] = {name} sends it'
    ]


def _import_of(name: str, value: object, cells: Sequence[str]) -> str:
    """The import statement that gave `name` in one of the notebook's cells; "" if none did."""
    for text in reversed(cells):
        if name not in text or "import" not in text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    node.names = [alias]
                    return ast.unparse(node)
    return f"import {value.__name__} as {name}" if isinstance(value, ModuleType) else ""
