"""What each public value is: a value has no docstring."""

OPERATION = "An operation of `allreduce` and of optimizers: "

VALUES = {
    "numba_kernels.allreduce.ALGORITHMS": (
        'The names that `allreduce(algorithm=...)` takes besides "auto".'
    ),
    "numba_kernels.allreduce.MESSAGES": (
        "What yields the steps of a rank, for each algorithm over messages, by its name; and mpi."
    ),
    "numba_kernels.compression.NAMES": "The names that `compression.get` takes.",
    "numba_kernels.launch.GUARD": (
        "The file of the supervisor process that ends every process of a run when the run ends."
    ),
    "numba_kernels.launch.MOST_RANKS": (
        "The largest number of ranks that is started on one node: more is probably a typing error."
    ),
    "numba_kernels.launch.THREAD_VARIABLES": (
        "The environment variables by which libraries learn how many threads a rank may have."
    ),
    "numba_kernels.optimizers.NAMES": "The names that `optimizers.get` and `--optimizer` take.",
    "numba_kernels.trace.LIMIT": (
        "How many spans of Python a recording holds, and as many waits in compiled code: 20 MB."
    ),
    "tutorial_dl.data.NAMES": "The data sets that `data.load` and `--data` know by name.",
    "tutorial_dl.horovod.keras.Adasum": OPERATION + "orthogonal are added, parallel averaged.",
    "tutorial_dl.horovod.keras.Average": OPERATION + "the mean over ranks, each of equal weight.",
    "tutorial_dl.horovod.keras.Max": OPERATION + "the largest value of each element.",
    "tutorial_dl.horovod.keras.Min": OPERATION + "the smallest value of each element.",
    "tutorial_dl.horovod.keras.Product": OPERATION + "the product of each element.",
    "tutorial_dl.horovod.keras.Sum": OPERATION + "the sum over ranks.",
    "tutorial_dl.horovod.keras.global_process_set": "The process set of all ranks.",
    "tutorial_dl.models.GANS": "Those of `models.NAMES` that are GANs.",
    "tutorial_dl.models.NAMES": "The models that `models.build` and `--model` know by name.",
    "tutorial_dl.replica.Batch": (
        "The type of a batch: (x, y), or (x, y, weights of samples); arrays, or tuples or dicts of "
        "arrays, samples first."
    ),
    "tutorial_dl.strategies.NAMES": (
        "The class of each strategy, by the name that `Trainer` and `--strategy` take."
    ),
}  # fmt: skip
