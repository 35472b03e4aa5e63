"""What was here in earlier versions, and what to write now."""

if __name__ == "__main__":
    raise SystemExit("error: tuning.regret is gone: write python -m benchmarks.regret")

raise ModuleNotFoundError(
    "tuning.regret is gone: write from tutorial_dl.tuning.problems import search"
)
