"""Words for people: a number and its noun."""


def counted(number: int, noun: str) -> str:
    """The number with its noun: "1 unit", "70 units", "10,000 epochs"."""
    return f"{number:,} {noun}{'s'[: number != 1]}"
