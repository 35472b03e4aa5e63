"""`python -m benchmarks.regret`: how samplers are compared."""

from benchmarks import regret


def test_a_table_is_counted_by_hand():
    rows = [
        {"problem": p, "seed": 1, "sampler": s, "seconds": 0.001, "regret": [9.0, value]}
        for p, values in (("f1 in 5", (3, 2, 1)), ("f2 in 5", (3, 4, 1)), ("Branin", (1, 2, 2)))
        for s, value in zip(("random", "tpe", "bayesian"), values, strict=True)
    ]
    table = {(r["problems"], r["sampler"]): r for r in regret.compare(rows, 2)}
    of = table["BBOB in 5 dimensions", "tpe"]
    assert (of["median rank"], of["better than random"], of["number"]) == (2.5, 1, 2)
    assert table["BBOB in 5 dimensions", "bayesian"]["median rank"] == 1
    assert table["Branin", "bayesian"]["mean rank"] == 2.5  # shared with tpe
    assert table["Branin", "random"]["median regret"] == 1 and of["median regret"] is None
