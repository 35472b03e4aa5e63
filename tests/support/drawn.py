"""What a figure shows: the data of its lines, its words, and the labels of its axes."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def line(ax, label: str) -> np.ndarray:
    """The data of the one line with this legend entry, shape (2, points)."""
    (found,) = [drawn for drawn in ax.get_lines() if drawn.get_label() == label]
    return np.array(found.get_data(), float)


def points(ax, label: str) -> list[list[float]]:
    return line(ax, label).tolist()


def heights(ax) -> list[list[float]]:
    """The y of each line, in the order in which they were drawn."""
    return [list(drawn.get_ydata()) for drawn in ax.get_lines()]


def texts(ax) -> list[str]:
    return [text.get_text() for text in ax.texts]


def legend(of) -> list[str]:
    """The entries of the legend of axes, or of a figure."""
    box = of.legends[0] if hasattr(of, "legends") else of.get_legend()
    return [text.get_text() for text in box.get_texts()]


def row_names(ax) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def column_names(ax) -> list[str]:
    return [label.get_text() for label in ax.get_xticklabels()]


def titles_of(figure) -> list[str]:
    return [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes]


def colours(png: bytes) -> int:
    """The number of different colours of a picture."""
    picture = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    return len(np.unique(picture.reshape(-1, 3), axis=0))


def pictures_of(film) -> list[np.ndarray]:
    """The pictures of a film, (height, width, 3) int."""
    gif, pictures = Image.open(io.BytesIO(film.gif)), []
    for frame in range(gif.n_frames):
        gif.seek(frame)
        pictures.append(np.asarray(gif.convert("RGB")).astype(int))
    return pictures
