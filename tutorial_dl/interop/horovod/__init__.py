"""Horovod's interface on Teams; scripts know it as `tutorial_dl.horovod`, which says more."""
