"""Parcels: Python objects as a list of buffers, for messages between the notebook and the ranks.

Functions and classes of a notebook are pickled by value, with the values of the notebook that they
use. Large arrays are buffers of their own, so that pickling does not copy them.
"""

import io
import pickle
from collections.abc import Sequence
from types import CodeType

from numba_kernels.errors import message_of

from ..interop.horovod.pickles import cloudpickle
from ..tensorflow_chatter import hide_tensorflow_chatter

LARGE = 1 << 16  # bytes from which an array is a buffer of its own


class CannotSend(TypeError):
    """An object can't be sent; the message says which and why."""


class Pickler(cloudpickle.Pickler):
    """Pickles an object; `files` are the files that its functions come from."""

    def __init__(self, file, on_rank: bool, buffers: list):
        def keep(buffer: pickle.PickleBuffer) -> bool:
            """pickle's `buffer_callback`: true for a buffer that is part of the pickle."""
            small = buffer.raw().nbytes < LARGE
            if not small:
                buffers.append(buffer.raw())
            return small

        super().__init__(file, protocol=5, buffer_callback=keep)
        self.on_rank, self.files = on_rank, set()

    def reducer_override(self, obj):
        if isinstance(obj, CodeType):
            self.files.add(obj.co_filename)
        # mpi4py pickles COMM_WORLD by its name, but the notebook has a world of its own.
        elif self.on_rank:
            kinds = [(kind.__module__, kind.__name__) for kind in type(obj).__mro__]
            if ("mpi4py.MPI", "Comm") in kinds:
                raise CannotSend("it has a communicator of MPI")
        return super().reducer_override(obj)


def pack(value: object, on_rank: bool = False) -> tuple[list, set[str]]:
    """(buffers, files of the functions in `value`); CannotSend if it can't be pickled.

    `on_rank`: this is a rank, whose communicators mean nothing to the notebook. The buffers are
    then copies, because the rank may change its arrays before they are on their way.
    """
    file, buffers = io.BytesIO(), []
    pickler = Pickler(file, on_rank, buffers)
    try:
        pickler.dump(value)
    except CannotSend:
        raise
    except Exception as error:  # a class's own pickling may raise anything
        raise CannotSend(" ".join(message_of(error).split()) or type(error).__name__) from None
    if on_rank:
        buffers = [bytes(buffer) for buffer in buffers]
    return [file.getvalue(), *buffers], pickler.files


def unpack(buffers: Sequence) -> object:
    """The object of a parcel. As with any pickle, from one's own ranks only."""
    first, *others = buffers
    if b"keras" in bytes(first):
        hide_tensorflow_chatter()  # a model loads TensorFlow
    return pickle.loads(first, buffers=[bytearray(buffer) for buffer in others])  # arrays: writable


def kind(value: object) -> str:
    """The type of `value` with its article, for messages."""
    name = type(value).__name__
    return f"{'an' if name.lstrip('_')[:1].lower() in tuple('aeiou') else 'a'} {name}"
