"""The command line, `python -m tutorial_dl`: one file per command, listed in commands.py.

train_result.py and report.py are the output of `train` and `run`; errors.py is how they fail.
"""
