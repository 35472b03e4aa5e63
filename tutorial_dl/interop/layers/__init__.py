"""Keras layers that work with all ranks of a Team; users know them as `tutorial_dl.layers`."""
