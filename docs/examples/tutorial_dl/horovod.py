"""Examples of tutorial_dl.horovod."""

# %% Start a function on two ranks
# shows: run
import tutorial_dl.horovod as horovod


def which():
    import tutorial_dl.horovod.tensorflow as hvd

    hvd.init()
    return hvd.rank(), hvd.size()


horovod.run(which, num_proc=2)
