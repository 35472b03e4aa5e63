"""`python -m tutorial_dl evaluate` and `predict`: a trained model on data, by one or more ranks."""

import warnings
from pathlib import Path

from .. import data as datasets
from .. import models
from .files import check_writable, print_or_write
from .train import report

KERAS = (".keras", ".h5")


def check(
    what: str, model_file: str, model: str | None, data: str, part: str, out: str | None = None,
    json: str | None = None, batch_size: int = 512, run_code: bool = False, **files: str | None,
) -> None:  # fmt: skip
    """Check everything that can be checked before ranks are started; ValueError, OSError."""
    path = Path(model_file)
    if not path.is_file():
        raise OSError(f"there is no model file {path}")
    if path.suffix not in (*KERAS, ".npz"):
        raise ValueError(f"model file {str(path)!r} must end in {', '.join(KERAS)} or .npz")
    if path.suffix == ".npz" and model is None:
        raise ValueError(f"{path} has arrays only; give the model that they belong to: --model")
    if model is not None:
        models.check(model)
    datasets.check(data, **files)
    if out is not None and Path(out).suffix not in (".npy", ".npz"):
        raise ValueError(f"predictions go to a file that ends in .npy or .npz, got {out!r}")
    check_writable(out, json)


def work(
    what: str, model_file: str, model: str | None, data: str, part: str, out: str | None = None,
    json: str | None = None, batch_size: int = 512, run_code: bool = False, **files: str | None,
) -> int:  # fmt: skip
    """The work of one rank; every rank calls it."""
    from numba_kernels.team.team import Team

    from ..data.dataset import varied
    from ..replica.base import try_out
    from ..runtime.evaluation import evaluate, predict
    from ..runtime.handing_out import opened
    from ..training.plan import TRIED

    team = Team()
    try:
        dataset = opened(datasets.load(data, **files), team)
        replica, samples = load(model_file, model, dataset, run_code), getattr(dataset, part)
        if samples is None:
            raise ValueError(f"data {data!r} have no validation part: --part train")
        try_out(replica, varied(samples, TRIED), shared=False)
        if what == "evaluate":
            found = evaluate(team, replica, samples, batch_size)
            streamed = isinstance(samples, datasets.Stream)
            found["samples"] = samples.samples if streamed else len(samples)
            if team.rank == 0:
                values = ", ".join(f"{n} {v:.4g}" for n, v in found.items() if n != "samples")
                print_or_write(found, json, f"{found['samples']} samples: {values}", indent=1)
        else:
            outputs = predict(team, replica, samples, batch_size)
            if team.rank == 0:
                write_outputs(outputs, Path(out))
        team.barrier()
        return 0
    except Exception as error:
        report(team, error, setting_up=True)
        return 2


def load(model_file: str, model: str | None, dataset, run_code: bool = False):
    """The Replica of a model that `Replica.save` has written."""
    import numpy as np

    path = Path(model_file)
    if path.suffix in KERAS:
        from .. import replica as replicas
        from .. import user_function
        from ..tensorflow_chatter import hide_tensorflow_chatter

        hide_tensorflow_chatter()
        import keras

        from ..interop.layers import sync_batch_normalization  # noqa: F401  (it registers a class)

        if model is not None and user_function.is_reference(model):
            user_function.find(model, "model")  # its module registers classes of the user's
        if not run_code and (layers := layers_of_code(path)):
            raise ValueError(
                f"{path}: the Lambda layer '{layers[0]}' is Python code, which is run when the "
                "file is loaded and could do anything: --run-code loads one of your own"
            )
        with warnings.catch_warnings():
            # A file of Keras's own may have no state of the optimizer, which is not needed here.
            warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
            return replicas.of(keras.saving.load_model(path, safe_mode=not run_code))
    replica, arrays = models.build(model, dataset), np.load(path)
    shapes = {one.name: one.shape for one in replica.segments}
    found = {name: arrays[name].shape for name in arrays}
    if shapes != found:
        raise ValueError(f"{path} has arrays {found}, but model {model!r} has {shapes}")
    for one in replica.segments:
        one.view(replica.parameters)[...] = arrays[one.name]
    return replica


def layers_of_code(path: Path) -> list[str]:
    """The names of Lambda layers in a file of Keras that hold code (not a function's name)."""
    from json import loads

    if path.suffix == ".keras":
        from zipfile import BadZipFile, ZipFile

        try:
            with ZipFile(path) as file:
                config = loads(file.read("config.json"))
        except (BadZipFile, KeyError):
            return []  # Keras says what is wrong
    else:
        import h5py

        with h5py.File(path) as file:
            config = loads(file.attrs.get("model_config", "{}"))
    found, left = [], [config]
    while left:
        one = left.pop(0)
        if isinstance(one, dict) and one.get("class_name") == "Lambda":
            function = one["config"].get("function")
            if isinstance(function, dict) and function.get("class_name") == "__lambda__":
                found.append(one["config"]["name"])
        left += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
    return found


def write_outputs(outputs, path: Path) -> None:
    """One array as .npy; several as .npz, by output."""
    import numpy as np

    named = outputs if isinstance(outputs, dict) else None
    if isinstance(outputs, tuple):
        named = {f"output_{i}": one for i, one in enumerate(outputs)}
    if named is None and path.suffix == ".npy":
        np.save(path, outputs)
    elif path.suffix == ".npy":
        raise ValueError(f"the model has {len(named)} outputs: predictions need a .npz file")
    else:
        np.savez(path, **(named or {"output": outputs}))
    print(f"wrote {path}: {in_words(named or {'': outputs})}", flush=True)


def in_words(outputs: dict) -> str:
    """How many samples there are, and the shape of each output, samples first."""
    import numpy as np

    shapes = {name: np.shape(one) for name, one in outputs.items()}
    samples = next(iter(shapes.values()))[0]
    each = ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items())
    return (
        f"outputs for {samples} sample{'s' * (samples != 1)}, shape{'s' * (len(shapes) > 1)} {each}"
    )
