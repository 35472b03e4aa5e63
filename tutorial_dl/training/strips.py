"""Small grey pictures in HTML, beside each other, each with its epoch: grids of a GAN's samples."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

import numpy as np

WIDTH = 267  # of a picture on the page: a multiple of the 89 pixels of ten digits


def png(picture: np.ndarray) -> str:
    """A picture (height, width) of uint8 as PNG in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def strip(frames: Sequence[tuple[int, np.ndarray]], words: str = "") -> str:
    """Pictures beside each other in HTML, each with its epoch below."""
    return strip_of([(epoch, png(one)) for epoch, one in frames], words)


def strip_of(frames: Sequence[tuple[int, str]], words: str = "") -> str:
    """The same of (epoch, PNG in base64)."""
    figures = "".join(
        '<figure style="margin:0"><img style="image-rendering:pixelated;max-width:100%" '
        f'width="{WIDTH}" alt="generated samples, epoch {epoch}" '
        f'src="data:image/png;base64,{data}"><figcaption>'
        f"{f'epoch {epoch}' if epoch else 'before training'}</figcaption></figure>"
        for epoch, data in frames
    )
    below = f"<div>Generated samples: {html.escape(words)}</div>" if words else ""
    return f'<div style="display:flex;flex-wrap:wrap;gap:12px">{figures}</div>{below}'
