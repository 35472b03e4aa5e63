"""Checks of notebook 27, from notebook to batch job."""

from . import NotYet, must_be, must_have, whole

RANKS, CORES, EACH = 24, 48, 8  # exercise 1: of the job, of a node, of a rank
GPUS, FASTER = 60, 30  # exercise 2


def job(answer) -> str:
    """Exercise 1: nodes, ranks per node, cores per rank."""
    names = "nodes", "ntasks_per_node", "cpus_per_task"
    parts = must_have(answer, 3, f"three numbers: {', '.join(names)}")
    nodes, ranks, cores = (whole(part, 1, None, n) for part, n in zip(parts, names, strict=True))
    if cores != EACH:
        raise NotYet(f"each rank is to have {EACH} cores; with cpus_per_task it has {cores}")
    if ranks * cores > CORES:
        raise NotYet(f"{ranks} ranks of {cores} cores do not fit on a node of {CORES}")
    if nodes * ranks != RANKS:
        raise NotYet(f"{nodes} x {ranks} = {nodes * ranks} ranks; {RANKS} are asked for")
    if nodes > -(-RANKS * EACH // CORES):
        raise NotYet("it runs, but fewer nodes are enough")
    return f"{RANKS} ranks on {nodes} full nodes"


def amdahl(answer) -> str:
    """Exercise 2: the share that does not shrink, and the largest speed-up."""
    share, most = must_have(answer, 2, "two numbers: the share f, and the largest speed-up")
    right = (1 / FASTER - 1 / GPUS) / (1 - 1 / GPUS)
    mistakes = {
        "this is the share of the ideal speed-up that was reached": FASTER / GPUS,
        "the part that shrinks takes a sixtieth of its time, but not no time": 1 / FASTER,
        "the share of the time on one GPU is asked for, not on 60": FASTER * right,
    }
    must_be(share, right, "f", mistakes, units=False)
    more = {"the part that does not shrink sets the limit, not the number of GPUs": GPUS}
    must_be(most, 1 / right, "the largest speed-up", more, units=False)
    return "with 60 GPUs, as much time goes into the part that does not shrink as into the other"
