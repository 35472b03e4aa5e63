"""Waits until a file is there, then becomes a command: python -I -S when_there.py FILE COMMAND ...

So engines can be started together with the controller that writes the file. Loads next to nothing.
"""

import os
import sys
import time

PATIENCE = 120  # seconds; whoever started this ends it before that


def main() -> None:
    file, *command = sys.argv[1:]
    end = time.monotonic() + PATIENCE
    while not os.path.exists(file):
        if time.monotonic() > end:
            sys.exit(f"{file} was not written within {PATIENCE} s")
        time.sleep(0.01)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
