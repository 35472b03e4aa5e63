"""Every figure that a test here draws can be kept for slides."""

import pickle

import pytest

from tutorial_dl import figure_style as style


@pytest.fixture(autouse=True)
def figures_can_be_kept(monkeypatch):
    made, begin = [], style.Figure.__init__

    def noted(self, *args, **options):
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(style.Figure, "__init__", noted)
    yield
    monkeypatch.undo()
    for figure in made:
        pickle.dumps(figure)
