"""Grids of a GAN's samples: what is drawn, which epochs are kept, and where they are shown."""

import base64
import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tutorial_dl import data
from tutorial_dl.data import Data, Dataset, showers
from tutorial_dl.replica.gan import Rules
from tutorial_dl.replica.one_dimensional_gan import OneDimensionalGan
from tutorial_dl.training import gan_samples
from tutorial_dl.training.gan import average_of, gan_trainer
from tutorial_dl.training.gan_samples import Samples, inked, tiled
from tutorial_dl.training.progress import NotebookProgress, Outlook, curve


def test_samples_stand_in_rows():
    images = inked(np.arange(6).reshape(6, 1, 1) / 5 * np.ones((6, 2, 3)))
    assert images[0].min() == 255 and images[5].max() == 0
    whole = tiled(images, 4)
    assert whole.shape == (2 * 3 - 1, 4 * 4 - 1)
    assert (whole[2] == gan_samples.GAP).all() and (whole[:2, 3] == gan_samples.GAP).all()
    for i in range(6):
        y, x = 3 * (i // 4), 4 * (i % 4)
        np.testing.assert_array_equal(whole[y : y + 2, x : x + 3], images[i])
    assert inked(np.array([-1.0, 2.0, np.nan])).tolist() == [255, 0, 255]


class Drawing:
    """Draws the class as the brightness, and notes what it is asked."""

    conditional = True

    def sample(self, asked, n, seed):
        self.asked = np.asarray(asked)
        return np.ones((n, 8, 8, 1)) * (self.asked / 9).reshape(-1, 1, 1, 1)


def look(samples, epochs, first=1, rank=0):
    trainer = SimpleNamespace(
        team=SimpleNamespace(rank=rank), history=SimpleNamespace(epochs=[0] * (first - 1)),
        callbacks=[],
    )  # fmt: skip
    samples.on_fit_begin(trainer)
    for epoch in range(first, first + epochs):
        samples.on_epoch_end(trainer, {"epoch": epoch})


def test_a_column_per_class():
    samples = Samples(Drawing(), data.digits())
    look(samples, 1)
    assert samples.game.asked.tolist() == [*range(10)] * 3
    epoch, picture = samples.newest
    assert epoch == 1 and picture.shape == (3 * 9 - 1, 10 * 9 - 1)
    for column in range(10):
        np.testing.assert_array_equal(picture[:8, 9 * column], round(255 * (1 - column / 9)))
    (before, first) = samples.pictures()
    assert (before["epoch"], first["epoch"]) == (0, 1)
    decoded = np.asarray(Image.open(io.BytesIO(base64.b64decode(first["png"]))))
    np.testing.assert_array_equal(decoded, picture)
    page = samples._repr_html_()
    assert page.count("<img") == 2 and "before training" in page and "epoch 1" in page
    assert samples.shown().count("<img") == 1 and "one column per class" in samples.shown()


def test_grids_cover_the_whole_run():
    samples = Samples(Drawing(), data.digits(), kept=4)
    for epochs, expected in ((2, [0, 1, 2]), (1, [0, 2, 3]), (2, [0, 2, 4, 5]), (10, [0, 8, 15])):
        first = samples.newest[0] + 1 if samples.newest else 1
        look(samples, epochs, first)
        assert [epoch for epoch, _ in samples.frames] == expected
    look(samples, 1, first=9)  # after a failure, an epoch is done again
    assert [epoch for epoch, _ in samples.frames] == [0, 8, 9]
    other = Samples(Drawing(), data.digits())
    look(other, 3, rank=1)
    assert not other.frames and other.shown() == "" and other.pictures() == []
    resumed = Samples(Drawing(), data.digits())
    look(resumed, 2, first=7)
    assert [epoch for epoch, _ in resumed.frames] == [7, 8]
    with pytest.raises(ValueError, match="kept must be at least 2, got 1"):
        Samples(Drawing(), data.digits(), kept=1)


def test_showers_from_the_side():
    dataset = showers.small_showers(40)
    samples = Samples(SimpleNamespace(), dataset)
    voxels = np.zeros((15, 13, 13, 13), np.float32)
    voxels[0, 2, 5, 7] = voxels[0, 2, 5, 9] = 1.0
    picture = samples._view(voxels)
    at = np.argwhere(picture[:13, :13] != 255)
    assert at.tolist() == [[5, 2]]  # x down, layers to the right
    brightest = np.log(dataset.train.inputs.sum(axis=3).max() / gan_samples.LEAST)
    expected = 255 * (1 - np.log(2.0 / gan_samples.LEAST) / brightest)
    assert picture[5, 2] == pytest.approx(expected, abs=1)
    assert (np.diff(samples._asked[:5]) > 0).all() and "GeV" in samples.words


def numbers(n=200):
    x = np.random.default_rng(0).normal(1, 0.5, n)
    return Dataset("normal", Data.of(x, None), None)


def test_numbers_before_the_data():
    """Samples that are the data lie on the upper edge of the grey area, steps included."""
    dataset = numbers(4000)
    samples = Samples(SimpleNamespace(), dataset)
    elsewhere = samples._view(np.full(100, dataset.train.inputs.max() + 0.3))
    grey = (elsewhere != gan_samples.PAPER).sum(axis=0)[:70]  # 1 where there is none: the ground
    ink = samples._view(dataset.train.inputs)[:, :70] == gan_samples.INK
    top, expected = len(ink) - 1 - ink.argmax(axis=0)[1:], np.maximum(grey[1:], grey[:-1])
    high = expected > 1
    assert expected.max() > 20 and 20 < high.sum() < 69
    np.testing.assert_array_equal(top[high], expected[high])
    assert (top[~high] <= 1).all()


def test_nothing_is_drawn_of_what_has_no_picture():
    samples = Samples(SimpleNamespace(), Dataset("rows", Data.of(np.zeros((4, 5)), None), None))
    look(samples, 2)
    assert samples.frames == [] and samples.shown() == ""


def test_a_notebook_shows_them_while_it_trains():
    """The averaged generator's, below the table; both players' losses are the curve."""
    dataset, shown = numbers(), []
    game = OneDimensionalGan(8, Rules(average=0.9, rates=(0.05, 0.05)))
    samples = Samples(game, dataset)
    trainer = gan_trainer(
        game, dataset, "serial", batch_size=20, progress=False, callbacks=[samples]
    )
    trainer.fit(2)
    with average_of(trainer).swapped():
        made = game.sample((), gan_samples.NUMBERS, 0)
    np.testing.assert_array_equal(samples.newest[1], samples._view(made))
    now = samples._view(game.sample((), gan_samples.NUMBERS, 0))
    assert not np.array_equal(samples.newest[1], now)

    display = SimpleNamespace(update=lambda what: shown.append(what._repr_html_()))
    with NotebookProgress(Outlook("a", trainer.run, 1), lambda what, display_id: display):
        pass
    assert shown[-1].endswith(samples.shown()) and 'alt="generated samples, epoch 2"' in shown[-1]
    assert curve(trainer.history.epochs).count("<polyline") == 2
    assert "discriminator's loss" in shown[-1]
