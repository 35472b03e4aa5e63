"""Words for people: a number and its noun."""


def counted(number: int, noun: str, several: str = "") -> str:
    """The number with its noun: "1 unit", "70 units", "10,000 epochs"; or what `several` says."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
