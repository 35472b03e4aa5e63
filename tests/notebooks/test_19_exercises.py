"""Notebook 19: cuts that fit and are fast are right; others are told the first wrong thing."""

import numpy as np
import pytest
from exercise_cells import says
from notebook_cells import Notebook

from tutorial_dl.course.exercises import check, notebook_19
from tutorial_dl.simulate import Cut, Job, Transformer, cost, gpus, possible


def test_which_cuts_are_right(capsys):
    every = possible(32, notebook_19.MODEL, notebook_19.JOB)
    right = [cut for cut in every if check("19.cut", cut)]
    assert set(right) == {Cut(2, 4, 1, 4), Cut(1, 8, 2, 2)}
    capsys.readouterr()
    for cut in set(every) - set(right):
        line = says(capsys, "19.cut", cut)
        found = cost(cut, notebook_19.MODEL, notebook_19.JOB, notebook_19.MACHINE)
        if found.bytes > 24e9:
            assert f"a GPU would hold {found.bytes / 1e9:.2f} GB and has 24" in line
        else:
            assert f"it fits, but a step takes {found.step:.1f} s" in line
            assert found.step > 8.4


def test_the_exercise_is_that_of_the_text():
    """Numbers of the text are those of the check."""
    (text,) = [cell for cell in Notebook("19").cells("markdown") if "## Exercise" in cell]
    machine, job = notebook_19.MACHINE, notebook_19.JOB
    for words in (
        f"**{notebook_19.RANKS} GPUs of {machine.memory / 1e9:g} GB, in nodes of "
        f"{machine.per_node}**",
        f"{1e-9 / machine.message(1):g} GB/s within a node",
        f"**{1e-9 / machine.lane(1):g} GB/s between nodes**",
        rf"${machine.flops / 1e14:g} \cdot 10^{{14}}$ operations",
        f"{job.batch} sequences of {job.length:,} tokens",
        f"at most {notebook_19.SECONDS:g} seconds",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    ("cut", "job", "axis"),
    [
        (Cut(data=32), Job(16_384, 16), "data 32: 16 sequences can not be divided evenly by 32"),
        (Cut(pipeline=5), Job(16_384, 16), "pipeline 5: 32 layers can not"),
        (Cut(context=3), Job(16_384, 16), "context 3: 16384 tokens can not"),
        (Cut(tensor=64), Job(16_384, 16), "tensor 64: 32 heads can not"),
    ],
)
def test_a_cut_that_can_not_be_made(cut, job, axis):
    machine = gpus(4, 1e9, 1e12, 1e9, 1e9)
    with pytest.raises(ValueError, match=axis):
        cost(cut, Transformer(32, 4096, 32, 50_257), job, machine)


def test_what_the_solution_says():
    def found(*sizes):
        return cost(Cut(*sizes), notebook_19.MODEL, notebook_19.JOB, notebook_19.MACHINE)

    assert np.isclose(found(32).memory["activations"], 73e9, rtol=0.01)
    assert round(found(8, 1, 1, 4).bytes / 1e9) == 27
    assert round(found(4, 2, 1, 4).bytes / 1e9, 2) == 24.07
    slow = found(1, 8, 1, 4)
    assert round(slow.step, 1) == 8.5 and slow.bytes < 24e9
    assert slow.seconds["bubble"] > slow.seconds["tensor"] > 0
