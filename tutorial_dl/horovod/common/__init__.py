"""Horovod's package of this name; scripts import errors from `common.exceptions`."""
