"""The command line, `python -m tutorial_dl`: one file per command, listed in commands.py.

train_result.py is the output of `train`; report.py and outcome.py are that of `run`; errors.py is
how they fail. kernel_ports.py is a check of `doctor`, and flags.py changes what --help shows.
"""

# The variable by which `train` passes the options to its ranks, as JSON. They would need a seventh
# of a second to read them from the command line, which says the same.
ASKED = "TUTORIAL_DL_ASKED"
