"""The optional parts of the installation, and what to say if one is missing."""

NEEDED = {  # module -> the extra that installs it, and its name on the package index
    "keras": ("keras", "Keras"),
    "tensorflow": ("keras", "TensorFlow"),
    "tensorboard": ("keras", "TensorBoard"),
    "h5py": ("notebooks", "h5py"),
    "sklearn": ("notebooks", "scikit-learn"),
    "matplotlib": ("notebooks", "Matplotlib"),
    "ipyparallel": ("notebooks", "ipyparallel"),
    "IPython": ("notebooks", "IPython"),
    "ipykernel": ("notebooks", "ipykernel"),
    "optuna": ("tuning", "Optuna"),
    "cmaes": ("tuning", "cmaes"),
    "scipy": ("tuning", "SciPy"),
    "cocoex": ("dev", "coco-experiment"),
    "jupyterlab": ("notebooks", "JupyterLab"),
}
LIBRARIES = ("wandb", "mlflow")  # of no extra: whoever logs there has them


def missing(error: BaseException) -> str | None:
    """One line that says how to install what an import has not found; None if it is not ours.

    >>> missing(ModuleNotFoundError("No module named 'keras'", name="keras"))
    'this needs Keras, which is not installed: pip install "tutorial-dl[keras]"'
    """
    if not isinstance(error, ModuleNotFoundError) or error.name not in {*NEEDED, *LIBRARIES}:
        return None
    if error.name in LIBRARIES:
        return f"this needs {error.name}, which is not installed: pip install {error.name}"
    extra, name = NEEDED[error.name]
    return f'this needs {name}, which is not installed: pip install "tutorial-dl[{extra}]"'
