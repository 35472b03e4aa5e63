"""The command line, `python -m tutorial_dl`: one file per command, listed in commands.py.

train_result.py is the output of `train`; report.py and outcome.py are that of `run`; errors.py is
how they fail. kernel_ports.py is a check of `doctor`, and flags.py changes what --help shows.
ranks.py starts the ranks of a command; what they are to do comes to them checked, as JSON.
"""
