"""`--help` without "<bool>" after flags, which take no value; typer 0.29 shows it."""

from typer.core import TyperOption

_shown = getattr(TyperOption, "display_type_rich", None)


def _type_of_value(self, ctx):
    return None if self.is_flag else _shown(self, ctx)


if _shown is not None:  # other versions of typer have no such method, and show no type
    TyperOption.display_type_rich = _type_of_value
