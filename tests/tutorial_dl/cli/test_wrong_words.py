"""Words that a command refuses: one line says what is wrong, before any rank is started."""

import shlex

import pytest
from commands_here import run_here

from numba_kernels import launch
from tutorial_dl.replica import DenseReplica

WRONG = {
    "train": [
        ("--model nosuch", "model 'nosuch': expected curve, softmax"),
        ("--data nosuch", "data 'nosuch': expected curve, digits"),
        ("--strategy nosuch", "'--strategy': 'nosuch' is not one of 'serial', 'synchronous'"),
        ("--optimizer nosuch", "'nosuch' is not one of 'sgd'"),
        ("-n 0", "number of ranks must be from 1 to 1024, got 0"),
        ("-n 99999", "number of ranks must be from 1 to 1024, got 99999"),
        ("-n two", "valid integer"),
        ("-n 2 --strategy serial", "strategy 'serial' uses 1 rank, not 2"),
        ("--strategy serial --one-copy", "one_copy needs strategy 'synchronous', got 'serial'"),
        ("--epochs 0", "--epochs"),
        ("--batch-size 0", "--batch-size"),
        ("--learning-rate -1", "--learning-rate"),
        ("--seed -1", "--seed"),
        ("--nosuch", "No such option"),
        ("--json nosuch/out.json", "there is no folder nosuch"),
        ("--json .", "is a folder"),
        ("--save nosuch/m.npz", "there is no folder nosuch"),
        ("--json /proc/out.json", "cannot write /proc/out.json: "),  # though root may, by its mode
        ("--checkpoint /proc/run", "cannot write /proc/run: "),
        ("--base-batch-size 16", "has no effect without --batch-rule"),
        ("--resume", "--resume has no effect without --checkpoint"),
        ("--checkpoint-every 5", "--checkpoint-every has no effect without --checkpoint"),
        ("--checkpoint here/nosuch/deep", "there is no folder here/nosuch"),
        ("--checkpoint file", "file is not a folder"),
        ("--target accuracy", "target must be METRIC=NUMBER, for example val_accuracy=0.97, got '"),
        ("--compression bf16 --strategy serial", "compression needs strategy 'synchronous'"),
        ("--compression bf16 --one-copy", "one_copy and compression exclude each other"),
        ("--timeline out.txt", "must be a file name that ends in .json, .png, .svg, .pdf, got '"),
        ("--timeline out", "must be a file name that ends in"),
        ("--timeline nosuch/out.json", "there is no folder nosuch"),
        ("--timeline folder.png", "is a folder"),
    ],
    "train -n 2 --strategy": [
        ("elastic_averaging --moving-rate 2", "moving_rate must be above 0 and below 2, got 2"),
        ("elastic_averaging --momentum 1", "momentum must be at least 0 and below 1, got 1"),
        ("gradient_energy_matching --kappa 0", "kappa must be above 0, got 0"),
        ("gradient_energy_matching --kappa inf", "kappa must be finite, got inf"),
        ("synchronous --clip-norm -1", "clip_norm must be above 0, got -1"),
        ("synchronous --every 1", "every needs strategy 'downpour' or 'elastic_averaging'"),
        ("downpour -n 1", "a master and a worker"),
        ("downpour --masters 2 --workers 2 -n 5", "7"),
        ("downpour --masters 0 -n 3", "needs one or more"),
        ("synchronous --masters 1 -n 3", "downpour"),
        ("synchronous --workers 2", "'synchronous' takes --masters 0"),
        ("downpour --masters 1 --workers 3 --devices 1 -n 3", "4; 3 fit masters 1 x workers 2"),
        ("downpour --kappa 2", "kappa"),
        ("downpour --discard 0", "discard must be at least 1, got 0"),
        ("local_steps --inner-steps 0", "inner_steps must be at least 1, got 0"),
        ("local_steps --every 2", "every needs strategy 'downpour' or 'elastic_averaging'"),
        ("local_steps --masters 1", "--masters 1: strategy 'local_steps' has no master"),
        ("local_steps --devices 2 -n 3", "3 ranks can't be masters 0 x devices 2"),
        ("local_steps --upward 2", "upward needs strategy"),
        ("gossip --compression int8", "compression needs strategy 'synchronous' or 'local_steps'"),
        ("diloco_async --grace -1", "grace must be at least 0, got -1"),
        ("downpour --moving-rate 1", "moving_rate"),
        ("downpour --upward often", "upward"),
        ("gradient_energy_matching --synchronous", "synchronous"),
        ("hogwild --every 2", "every"),
    ],
    "evaluate": [
        ("--lr 0.1", "No such option: --lr ("),  # not "it is --learning-rate here"
        (f"--model-file {'long/' * 40}b.keras", f"there is no model file {'long/' * 40}b.keras"),
        ("--model-file no.keras", "there is no model file no.keras"),
        ("--model-file file.py", "must end in .keras, .h5 or .npz"),
        ("--model-file dense.npz", "give the model that they belong to: --model"),
        ("--model-file b.keras --data nosuch", "data 'nosuch': expected"),
    ],
    "predict": [
        ("--model-file b.keras --out p.txt", "ends in .npy or .npz"),
        ("--model-file b.keras --out no/p.npy", "there is no folder"),
    ],
    "generate": [
        ("", "generate needs --model-file FILE, for text, or --checkpoint FOLDER"),
        ("--model-file m.npz --checkpoint run", "generate needs --model-file FILE"),
        ("--checkpoint run", "samples of a GAN need --out FILE"),
        ("--checkpoint . --out s.h5", "is no folder of checkpoints"),
        ("--checkpoint dense --out s.h5 -n 0", "must be at least 1, got 0"),
        ("--checkpoint dense --out s.npz", "ends in .h5 or .hdf5"),
        ("--checkpoint dense --out s.h5", "which is no GAN"),
        ("--checkpoint gan --out s.h5", "there is no checkpoint in"),
        ("--model-file no.npz --model transformer", "there is no model file no.npz"),
        ("--model-file dense.npz", "has arrays only; give the model"),
        ("--model-file dense.npz --model transformer", "has arrays {"),
        ("--model-file dense.npz --model transformer --prompt ''", "needs at least one character"),
    ],
    "layout": [
        ("--masters 2 --workers 3 --devices 2 --ranks 7",
         "7 ranks, but masters 2 x workers 3 x devices 2 need 15; 7 fit masters 1 x workers 3 "
         "x devices 2, or masters 2 x workers 1 x devices 2"),
        ("--ranks 1", "1 rank, but an asynchronous run needs a master and a worker"),
        ("--workers 0", "workers must be an integer of at least 1, got 0"),
        ("--figure l.txt", "--figure must be a file name that ends in .png, .svg, .pdf, got 'l.tx"),
        ("--json nosuch/x.json", "there is no folder nosuch"),
        ("-n 2 --sequence-parallel", "--sequence-parallel has no effect without --for MODEL"),
        ("-n 5 --pipeline 2", "5 ranks can't be divided into pipelines of 2"),
        ("--pipeline 2 --workers 3", "--pipeline is shown with -n, --node-size"),
        ("-n 6 --pipeline 2 --tensor 2", "can't be divided into groups of 4 (pipeline 2 x tensor"),
    ],
    "site": [("picture --out docs/picture.svg", ": make ")],  # what were commands
    "slides": [("numbers", ": make ")],
}  # fmt: skip
CASES = [(f"{of} {words}", line) for of, rows in WRONG.items() for words, line in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    for name in ("file", "file.py", "b.keras"):
        (folder / name).write_bytes(b"")
    for name, model in (("dense", "dense"), ("gan", 'one-dimensional-gan"\ndata = "curve')):
        (folder / name).mkdir()
        (folder / name / "run.toml").write_text(f'[data]\nmodel = "{model}"\n')
    (folder / "folder.png").mkdir()
    DenseReplica((64, 8, 10)).save(folder / "dense.npz")
    return folder


@pytest.mark.parametrize(("words", "line"), CASES, ids=[words for words, _ in CASES])
def test_wrong_words_are_one_line(folder, monkeypatch, capfd, words, line):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(launch, "run_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    done = run_here(capfd, *shlex.split(words))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert line in done.stderr
