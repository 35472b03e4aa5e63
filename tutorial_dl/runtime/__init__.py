"""A run: the state of training, and the two loops that train.

run.py         `Run`, the state that both loops share
loop.py        `Loop`, what a Trainer asks of them; callback.py what they ask of a callback
compilation.py how TensorFlow computes the steps: which way is faster
in_step.py     every rank computes its share of every batch
master/        a master hands out work and answers its workers
history.py     what a run returns, and history_figure.py a figure of it; evaluation.py validation;
               errors.py how a run ends early; handing_out.py each rank's share of a stream
termination.py a batch system's SIGTERM
"""
