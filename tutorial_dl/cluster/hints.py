"""What may help with an error: a name that the notebook has, and the ranks do not."""

import re
import sys
from collections.abc import Mapping
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
    imported = _import_of(name, value)
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


def _import_of(name: str, value: object) -> str:
    """The import statement that gives `name` this value; "" if none does."""
    if isinstance(value, ModuleType):
        alias = "" if name == value.__name__ else f" as {name}"
        return f"import {value.__name__}{alias}"
    where, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    for module in (str(where).partition(".")[0], where):  # a package shows most of what it has
        if own and module != "__main__" and getattr(sys.modules.get(module), own, None) is value:
            return f"from {module} import {own}{'' if own == name else f' as {name}'}"
    return ""
