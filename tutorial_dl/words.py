"""Words for people: a number and its noun; a word of bearable length."""

import difflib
import re
from collections.abc import Iterable

LONGEST = 160  # characters of a word, in what a command says


def counted(number: int, noun: str, several: str = "") -> str:
    """The number with its noun: "1 unit", "70 units", "10,000 epochs"; or what `several` says."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one; None if none is."""
    return next(iter(difflib.get_close_matches(name.replace("-", "_"), list(known), 1, 0.51)), None)


def cut(text: str) -> str:
    """The text; of a word that is too long, as a mistyped value may be, its beginning and end.

    Paths stay as they are.
    """
    return re.sub(rf"[^\s/]{{{LONGEST},}}", lambda word: f"{word[0][:60]}...{word[0][-20:]}", text)
