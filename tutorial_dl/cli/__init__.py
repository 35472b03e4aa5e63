"""The command line, `python -m tutorial_dl`: one file per command, listed in commands.py."""
