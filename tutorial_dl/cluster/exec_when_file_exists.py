"""Waits until a file is there, then becomes a command.

    python -I -S exec_when_file_exists.py FILE COMMAND ...

So engines can be started together with the controller that writes the file. It waits until then,
or until its guard ends it, as when the controller has ended. Loads next to nothing.
"""

import contextlib
import os
import sys
import time


def main() -> None:
    file, *command = sys.argv[1:]
    while not written(file):
        time.sleep(0.01)
    os.execvp(command[0], command)


def written(file: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(file).st_size > 0
    return False


if __name__ == "__main__":
    main()
