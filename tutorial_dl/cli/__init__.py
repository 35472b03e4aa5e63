"""The command line, `python -m tutorial_dl`: one file per command, listed in commands.py.

train_result.py is the output of `train`; report.py and outcome.py are that of `run`; files.py
checks and writes files, and errors.py is how commands fail. kernel_ports.py is a check of `doctor`,
and flags.py changes what --help shows.
ranks.py starts the ranks of a command; what they are to do comes to them checked, as JSON.
"""
