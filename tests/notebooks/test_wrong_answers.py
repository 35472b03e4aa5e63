"""The likely wrong answers of every exercise: each gets a hint that names its misconception.

A hint never gives the answer away: neither the right number, nor how far off it is.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from exercise_cells import says
from notebook_cells import Notebook

from tutorial_dl.strategies import Rule

# Numbers ---------------------------------------------------------------------------------------

NUMBERS = [
    ("01.degree", 3, "degree 3 would be .* above that of the best"),  # the best for 20 samples
    ("01.degree", 12, "training error is smallest"),
    ("01.degree", 6, "may be the number of parameters"),
    ("01.degree", 40, "whole number from 0 to 12, got 40"),
    ("01.degree", 4.5, "whole number from 0 to 12, got 4.5"),
    ("01.degree", True, "got True"),
    ("01.degree", [5, 6], "got"),
    ("03.weights", (4800, 196_672), "the convolution: the biases are missing"),
    ("03.weights", (64 * 26, 196_672), "the image has three channels"),
    ("03.weights", (4801, 196_672), "not one for all"),
    ("03.weights", (4864, 3073), "the dense layer: this is one output"),
    ("03.weights", (4864, 64 * 1025), "the image has three channels"),
    ("03.weights", 4864, "expected two numbers"),
    ("04.half", 2e-6 / 10e9, "inverse of the bandwidth"),
    ("04.half", 20, "units: .* power of 1000"),  # kB
    ("04.half", 2_500, "A byte has 8 bits"),
    ("04.half", 19.53, "1 KiB has 1024 bytes"),  # in KiB
    ("04.half", 5_000, "float32 weights; bytes"),
    ("04.half", 40_000, "only one message"),
    ("04.half", 20_700, "slightly too high"),
    ("04.half", "20 kB", "must be a number, got '20 kB'"),
    ("32.crossover", 22 * 2e-6 / (8 / 10e9), "the bytes of the ring are missing"),
    ("32.crossover", 22 * 2e-6 / (6 / 10e9), r"2 \(p - 1\) / p"),
    ("32.crossover", -20_000, "each of the ring's messages is one chunk"),
    ("32.crossover", 26 * 2e-6 / (2.125 / 10e9), "both halves cost"),
    ("32.crossover", 71_837 / 4, "float32 weights; bytes"),
    ("32.crossover", 71_837 * 8, "A byte has 8 bits"),
    ("32.crossover", 71.837, "power of 1000"),
    ("32.crossover", "72 kB", "must be a number"),
    ("06.ranks", (8, 1.5), "ranks = 8 takes 28.1% longer"),  # 4.265 / 3.33
    ("06.ranks", (4, 6.12 / 3.33), "on one rank nothing is exchanged"),
    ("06.ranks", (4, 3.33 / 5.72), "not the other way round"),
    ("06.ranks", (4, 3.33), "the time of a step"),
    ("06.ranks", (4, 5.72 / 1.73), "the exchange is missing"),
    ("06.ranks", (4, 5.72 / 2.53), "two times p n b"),
    ("06.ranks", (4, 5.72 / 3.48), "the update is divided"),
    ("06.ranks", (4, 5.72 / 3.03), "0.4 ms of a gradient do not shrink"),
    ("06.ranks", (4, 4), "if all work were divided"),
    ("06.ranks", (4, 0.4294), "efficiency"),
    ("06.ranks", (9, 1), "from 1 to 8, got 9"),
    ("06.ranks", (3.6, 1.7), "whole number from 1 to 8"),
    ("06.ranks", (True, 1), "whole number"),
    ("06.ranks", 4, "expected two numbers: .* a single int"),
    ("06.ranks", (4, 1.7, 0), "expected two numbers"),
    ("07.trips", (10, 5), "fetched first"),
    ("07.trips", (4, 1), "these are the numbers of passes"),
    ("07.trips", (8, 5), "read and written"),
    ("07.trips", (6, 5), "what is written goes"),
    ("07.trips", (5, 11), "swapped"),
    ("07.trips", (44, 20), "this is in bytes"),
    ("07.trips", (11, 3), "v and w are read and written"),
    ("07.trips", (11, 7), "t is never in memory"),
    ("07.trips", (14, 5), "numpy, per weight, 14, is too high"),
    ("07.trips", 11, "expected two numbers"),
    ("09.batches", (1024, 8192), "linear rule: at batch 1024 the rate is 0.8, above"),
    ("09.batches", (256, 8192), "linear rule: 256 is the largest without momentum"),
    ("09.batches", (512, 2048), "square-root rule: 2048 is the largest without momentum"),
    ("09.batches", (128, 8192), "linear rule: 128 is stable, but not the largest"),
    ("09.batches", (512, 16384), "square-root rule: at batch 16384 the rate is 0.8,"),
    ("09.batches", (8192, 512), "linear rule: at batch 8192 the rate is 6.4, above"),
    ("09.batches", (972.8, 8192), "one of 64, 128, ..., 32768, got 972.8"),
    ("09.batches", (True, 8192), "got True"),
    ("09.batches", (512,), "expected two numbers"),
    ("11.plan", (1 + 250 / 80, 10), "two ways"),
    ("11.plan", (13.5, 10), "10 Gbit per second are bits"),
    ("11.plan", (7.25, 10), "float32 has 4 bytes"),
    ("11.plan", (1.5625, 10), "served, too"),
    ("11.plan", (1.64, 10), "the other way round"),
    ("11.plan", (16, 10), "more workers than the master can serve"),
    ("11.plan", (2.56, 9), "16 workers need 1.06 seconds of the master's time in each second"),
    ("11.plan", (2.56, 11), "11 gradients per exchange are more than needed"),
    ("11.plan", (2.56, 9.6), "whole number, at least 1, got 9.6"),
    ("11.plan", (2.56, 0), "got 0"),
    ("11.plan", (2.56, "many"), "got 'many'"),
    ("11.plan", 2.56, "expected two numbers"),
    ("12.workers", (7, 4), "with 7 workers the rate 0.05 is above the bound, 0.0482"),
    ("12.workers", (5, 4), "plain: this may be the staleness"),
    ("12.workers", (6, 3), "staleness-aware: this may be the staleness"),
    ("12.workers", (6, 5), "staleness-aware: with 5 workers the rate 0.35 is above the bound"),
    ("12.workers", (4, 4), "plain: stable with 4, but also with more"),
    ("12.workers", (6, 3.5), "got 3.5"),
    ("12.workers", (6, True), "got True"),
    ("12.workers", 6, "expected two numbers"),
    ("14.kappa", (1.0, 0.5), "exactly pace 1 is asked for"),
    ("14.kappa", (8 / 9, 0.5), "solve for kappa"),
    ("14.kappa", (9 / 8, 1.0), "pi is clipped"),
    ("14.kappa", (9 / 8, 5), "in units of |D|"),
    ("14.kappa", (9 / 8, 4), "where does 8 come from"),
    ("14.kappa", (8 / 7, 0.5), "its own last commit"),
    ("14.kappa", 1.125, "expected two numbers"),
    ("15.choice", (1, 20, 2), "your layout needs 41 ranks; there are 40"),
    ("15.choice", (1, 9, 4), "batch of a worker must be at most 64 samples, got 128"),
    ("15.choice", (1, 19, 2), "at least 20,000 samples per second, got 16,000"),  # 64 / 0.004
    ("15.choice", (2, 9, 2), "unseen updates must be at most 23 on average, got 25"),  # 17 + 8
    ("15.choice", (0, 20, 2), "masters must be at least 1, got 0"),
    ("15.choice", (2, 0, 2), "the number of workers must be a whole number, at least 1, got 0"),
    ("15.choice", (2, "7", 2), "got '7'"),
    ("15.choice", (2, 7), "expected three numbers"),
    ("15.choice", 14, "expected three numbers"),
    ("16.batch", 1024, "the width of what is reduced: it cancels"),
    ("16.batch", 8192, "reduces twice, forward and backward"),
    ("16.batch", 2048, "that of both matrices"),
    ("16.batch", 16384, "numbers of both ways, or bytes of both"),
    ("16.batch", 32768, "the number of ranks is the same for both"),
    ("16.batch", 512, "no part by ranks"),
    ("16.batch", 2**22, "weights of one matrix"),
    ("16.batch", 2**23, "how many are reduced per sample"),
    ("16.batch", "4k", "must be a number"),
    ("18.ranks", (4, 3), "stage 2 on ranks = 4: each needs 10.5 GB, and has 10"),  # 6 + 18 / 4
    ("18.ranks", (5, 2), "stage 3 on ranks = 2: each needs 12.0 GB, and has 10"),
    ("18.ranks", (6, 3), "stage 2 on ranks = 6 fits, but so would fewer"),
    ("18.ranks", (5, 5), "this is the number for stage 2"),
    ("18.ranks", (5, 4), "stage 3 on ranks = 4 fits, but so would fewer"),
    ("18.ranks", (4.5, 2.4), "whole number"),
    ("18.ranks", 5, "expected two numbers"),
    # The fastest of all holds 24.07 GB.
    ("19.cut", (4, 2, 1, 4), r"it does not fit: .* 24\.07 GB and has 24 .*activations 18\.3"),
    ("19.cut", (1, 32, 1, 1), r"activations 73\.0"),  # stages do not divide activations
    ("19.cut", (32, 1, 1, 1), r"hold 102\.10 GB"),
    ("19.cut", (1, 8, 1, 4), "it fits, but a step takes 8.5 s; .* most of it is for bubble: 1.5 s"),
    ("19.cut", (4, 1, 1, 8), "a tensor group of 8 does not fit on a node of 4, so every layer"),
    ("19.cut", (4, 1, 2, 4), r"context x tensor = 8 does not fit on a node of 4, so keys and"),
    ("19.cut", (4, 1, 4, 2), "the order is data, pipeline, context, tensor; yours means data 4 x"),
    ("19.cut", (2, 4, 1, 2), "2 x 4 x 1 x 2 = 16 ranks, but there are 32 GPUs"),
    ("19.cut", (2, 4, 0, 4), "context must be a whole number, at least 1, got 0"),
    ("19.cut", (2, 4, 1, "4"), "tensor must be a whole number, at least 1, got '4'"),
    ("19.cut", (8, 4), "expected four numbers: data, pipeline, context, tensor"),
    ("19.cut", 32, "expected four numbers"),
    ("31.period", 28, "slightly more than a tenth"),
    ("31.period", 32, "exchanges included"),
    ("31.period", 4, "A byte has 8 bits"),
    ("31.period", 8, "a weight has 4 bytes"),
    ("31.period", 28.8, "whole number"),
    ("30.batch", 1024, "5% is 0.05, not 5"),
    ("30.batch", 20_480, "there are five rounds"),
    ("30.batch", 307_200, "the gradient takes three products"),
    ("30.batch", 5_120, "as long as the gradient"),
    ("30.batch", "100k", "must be a number"),
]

# What no hint may say: a pattern of the right numbers.
ANSWERS = {
    "01.degree": "5", "03.weights": r"4,?864|196,?672", "04.half": "20,?000|20 kB",
    "32.crossover": "71,?8|72", "06.ranks": r"1\.7[12]", "07.trips": "11",
    "09.batches": "512|8,?192",
    "11.plan": r"2\.56|10", "12.workers": "6|4",
    "14.kappa": r"1\.125|9/8|0\.5", "15.choice": "(?!)", "16.batch": "4,?096",
    "18.ranks": "(?!)", "19.cut": "(?!)", "30.batch": r"102,?400|100 n", "31.period": "29",
}  # fmt: skip


@pytest.mark.parametrize(("exercise", "answer", "hint"), NUMBERS)
def test_a_wrong_number(exercise, answer, hint, capsys):
    said = says(capsys, exercise, answer).strip()
    assert re.search(hint, said), said
    given = answer if isinstance(answer, (tuple, list)) else [answer]
    told = said
    for part in given:  # a hint may repeat what the learner wrote
        told = told.replace(f"{part!r}", "").replace(
            f"{part:.6g}" if isinstance(part, float) else "", ""
        )
    # Numbers of the exercise that are in the answer's digits, too.
    told = re.sub(
        r"two numbers|from \S+ to \S+|got .*|10 Gbit|0\.05 |0\.482|4 bytes|0\.4 ms", "", told
    )
    assert not re.search(rf"(?<![\d.])(?:{ANSWERS[exercise]})(?![\d.])", told), said


@pytest.mark.parametrize("exercise", sorted({exercise for exercise, *_ in NUMBERS}))
@pytest.mark.parametrize("answer", [None, ..., (1, ...), [None]])
def test_a_number_that_is_missing(exercise, answer, capsys):
    assert says(capsys, exercise, answer) == "not yet: put your answer in place of the `...`\n"


# Functions -------------------------------------------------------------------------------------


def changed(exercise, old, new):
    """The folded solution's function or class, with one piece of its code replaced."""
    code = Notebook(exercise[:2]).solution_of(exercise)
    assert code.count(old) >= 1, (old, code)
    names = {"np": np, "check": lambda name, answer: names.update(answer=answer)}
    exec(compile(code.replace(old, new), "cell", "exec"), names)
    return names["answer"]


# fmt: off
FUNCTIONS = [  # exercise, piece of the solution, what a learner wrote in its place, hint
    ("02.descent", "w - eta", "w + eta", "uphill"),
    ("02.descent", "2 / len(y) * ", "", r"is 5 times the right one|2/s"),
    ("02.descent", "2 / len(y)", "1 / len(y)", "a factor of 2"),
    ("02.descent", "2 / len(y)", "2", "sum over the samples"),
    ("02.descent", "range(steps)", "range(steps + 1)", "one step more"),
    ("02.descent", "    return w", "        return w", "inside the loop|returns nothing"),
    ("02.descent", "w = w - eta", "v = w - eta", "w has not moved|one step less"),
    ("03.backward", "(a > 0)", "(1 - a**2)", "relu, not tanh"),
    ("03.backward", " * (a > 0)", "", "below the hinge it is flat"),
    ("03.backward", "2 / len(x)", "1 / len(x)", "a factor of 2"),
    ("03.backward", "2 / len(x)", "2", "sum over the samples"),
    ("03.backward", "2 / len(x)", "1", "2/s"),
    ("03.backward", "2 / len(x)", "-2 / len(x)", "wrong sign"),
    ("03.backward", "(axis=0), a.T", "(axis=0, keepdims=True), a.T", r"db1 .* should have shape"),
    ("03.backward", "return x.T @ delta_z, ", "return ", "expected four arrays: .* 3 of them"),
    ("09.warm_up", "* step / steps", "* (step + 1) / steps", "one step ahead"),
    ("09.warm_up", "* step / steps", "* step / (steps - 1)", "not one step earlier"),
    ("09.warm_up", "start + (rate - start)", "rate", "begins at 0"),
    ("09.warm_up", "(rate - start)", "rate", "what is to be added"),
    ("09.warm_up", "step >= steps", "True", "there is no warm-up"),
    ("09.warm_up", "step >= steps", "step > steps + 1", "at step 11, 0.702, is too high"),
    ("09.warm_up", "step >= steps", "step >= steps > 0", "ZeroDivisionError.*line 4"),
    ("09.warm_up", "return rate", "return min(start, rate)", "too low|too high"),
    ("10.combine", "(variances + (means - mean) ** 2)", "variances", "the mean of the variances"),
    ("10.combine", "variances + ", "", "the variance of the means"),
    ("10.combine", "return mean, variance", "return variance, mean", "swapped"),
    ("10.combine", "return mean, variance", "return mean, np.sqrt(variance)", "standard deviation"),
    ("10.combine", "return mean, variance", "return mean", r"have an array of shape \(3,\)"),
    ("10.combine", "(counts / counts.sum())", "(np.ones(len(counts)) / len(counts))", "plain mean"),
    (
        "10.combine", "(variances + (means - mean) ** 2)).sum(axis=0)",
        "(variances + means**2)).sum(axis=0) - mean**2",
        "4096 standard deviations: the variance is off",
    ),
    ("10.combine", "sum(axis=0)", "sum()", "should have shape"),
    ("11.answer", "max(serve, workers * serve - compute)", "serve", "W = 5.* has to wait"),
    ("11.answer", "max(serve, ", "max(-9, ", "negative time"),
    ("11.answer", "max(serve, ", "max(0, ", "an answer takes at least t_s"),
    ("11.answer", " - compute", "", "the master is not saturated here"),
    ("11.answer", "return max", "return 1000 * max", "yours are milliseconds"),
    ("11.answer", "return max", "return compute + max", "computing is not part"),
    ("12.delayed", "max(t - tau, 0)", "t", "they should be 1 update old"),
    ("12.delayed", "max(t - tau, 0)", "max(t - tau - 1, 0)", "one update too old"),
    ("12.delayed", "max(t - tau, 0)", "t - tau", r"in Python x\[-1\]|IndexError"),
    ("12.delayed", "x[t] - eta", "x[t] + eta", "uphill"),
    ("12.delayed", "return x", "return x[1:]", "6 numbers; x0 itself and 6 after it"),
    ("12.delayed", "return x", "return x[-1]", "the list of all"),
    ("13.springs", "        x -= self.rate * g", "", "x made no gradient step; x -= "),
    (
        "13.springs", "        if due:\n            server.push(x, into=x)\n",
        "        if due:\n            server.push(x, into=x.copy())\n", "its spring did not pull",
    ),
    ("13.springs", "        x -=", "            x -=", "no exchange is due, but a gradient step"),
    ("13.springs", "if due", "if True", "the center is off"),
    (
        "13.springs", "        if due:\n", "        x -= self.rate * g\n        if due:\n",
        "the exchange comes before",
    ),
    ("13.springs", "center += d", "center = center + d", "the center has not moved"),
    ("13.springs", "0.9 / self.workers", "0.9", "divided by the number of workers"),
    ("13.springs", "center += d", "center -= d", "moves away"),
    ("13.springs", "sent - d", "sent + d", "pushes the worker away"),
    ("13.springs", "answer[:] =", "answer =", "its spring did not pull|off by"),
    ("14.commit", ", 0, 5)", ", None, 5)", "pi must be at least 0"),
    ("14.commit", ", 0, 5)", ", 0, None)", "pi must be at most 5"),
    ("14.commit", "return pi * D", "return pi", "you return pi"),
    ("14.commit", "return pi * D", "return D", "you return D itself"),
    ("14.commit", "return pi * D", "return pi.clip(0, 5).mean() * D", "one pi for all|is off"),
    ("14.commit", "return pi * D", "return -pi * D", "uphill"),
    ("14.commit", "D = -eta * g", "D = -g", "D contains the learning rate"),
    ("14.commit", "m = mu * m + D", "m = D", "momentum"),
    ("14.commit", "m = mu * m + D", "m = mu * (m + D)", "only the old m"),
    ("14.commit", "pi * D, m", "pi * D, mu * m + D", "the new m is off"),
    ("14.commit", "m = mu * m + D", "m *= mu\n    m += D", "changed its input arrays"),
    ("14.commit", "return pi * D, m", "return pi * D", "expected two arrays"),
    # An unguarded division: right wherever something is left to do, and nan where it is 0 / 0.
    ("14.commit", "(np.abs(D) + 1e-12)", "np.abs(D)", "where the gradient is 0, what is 0 / 0"),
    ("15.path", "    if own.device > 0:", "    if False:", "device 0 collects"),
    ("31.common", "w - d", "d", "this is D"),
    ("31.common", "w - d", "w + d", "against the way"),
    ("31.common", "weights=samples", "weights=None", "not equally"),
    ("30.one_round", "2.0315 * square @ square", "2.0315 * square", "the last power is 5"),
    ("30.one_round", "-4.7750 * square", "-4.7750 * np.eye(len(x))", "is off"),
    ("30.one_round", "x.shape[0] > x.shape[1]", "False", "the larger square takes longer"),
    ("30.one_round", "return one_round(x.T).T", "return one_round(x.T)", "shape"),
    ("15.path", "passed = [rank]", "passed = [rank, rank]", "list each rank once"),
    ("15.path", "return passed", "return passed[::-1]", "begin at the rank that computed"),
    ("15.path", "return passed", "return passed[1:] or passed", "is on the path, too"),
    ("15.path", "    while roles", "    if roles", "who is above the last"),
    (
        "15.path", "return passed", "return passed if len(passed) < 4 else [*passed[:-2], 0]",
        "there is a sub-master on the way",
    ),
    ("15.path", "return passed", "return 'up'", "a list of ranks is needed, got 'up'"),
    ("18.add", "o * old[:, None] + new", "o + new", "total is multiplied by .*, but o is not"),
    ("18.add", "total * old + new", "total + new", "o is multiplied by .*, but total is not"),
    ("18.add", "old = np.exp(m - largest)", "old = 1 + 0 * m", "belong to another maximum|finite"),
    ("18.add", "old = np.exp(m - largest)",
     "old = np.where(np.isfinite(m), np.exp(largest - m), 0)", "wrong sign|not finite"),
    ("18.add", "np.maximum(m, s.max(axis=1))", "0 * s.max(axis=1)", "not finite"),
    ("18.add", "total * old + new.sum(axis=1), o * old[:, None] + new @ v",
     "new.sum(axis=1), new @ v", "only this block is in it"),
    ("18.add", "o * old[:, None] + new @ v", "(new @ v) / new.sum(axis=1)[:, None]",
     "divided by total already"),
    ("18.add", "new.sum(axis=1)", "new.sum()", "o / total is off by"),
    ("18.add", "return largest, ", "return ", "expected three arrays"),
    ("18.add", "    return ", "    ", "returns nothing"),
    ("18.add", "return largest,", "return s,", r"m must have shape \(3,\), yours has \(3, 4\)"),
    ("15.path", "return passed", "return [len(roles)]", "a rank must be a whole number from 0"),
]
# fmt: on


@pytest.mark.filterwarnings("ignore:invalid value encountered", "ignore:divide by zero")
@pytest.mark.parametrize(("exercise", "old", "new", "hint"), FUNCTIONS)
def test_a_wrong_function(exercise, old, new, hint, capsys):
    said = says(capsys, exercise, changed(exercise, old, new)).strip()
    assert re.search(hint, said), said


NAMES = sorted({exercise for exercise, *_ in FUNCTIONS})


@pytest.mark.parametrize("exercise", NAMES)
def test_no_function(exercise, capsys):
    said = says(capsys, exercise, 3)
    assert "a function is asked for, not 3" in said or "a class derived from Rule" in said


def test_an_instance_of_the_rule(capsys):
    assert "the class itself is asked for" in says(capsys, "13.springs", Rule())


@pytest.mark.parametrize("exercise", [name for name in NAMES if name != "13.springs"])
def test_a_function_that_is_still_to_be_written(exercise, capsys):
    def later(*arguments):
        raise NotImplementedError

    assert says(capsys, exercise, later) == "not yet: the function is still to be written\n"


@pytest.mark.parametrize("exercise", [name for name in NAMES if name != "13.springs"])
@pytest.mark.parametrize("nothing", [None, ..., (None, 1)])
def test_a_function_that_returns_nothing(exercise, nothing, capsys):
    said = says(capsys, exercise, lambda *arguments: nothing)
    assert re.search(r"returns nothing|a part of it is still missing", said)
