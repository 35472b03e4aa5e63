"""One rank of a world for one call: python one_call.py FILE FUNCTION ARGUMENTS (on_ranks.py)."""

from __future__ import annotations

import json
import sys

from light_pytest import instead_of_pytest
from modules import load_file

# Write whole lines, so that the output of several ranks does not mix within a line. With
# PYTHONUNBUFFERED every word and every end of a line would be a separate write.
sys.stdout.reconfigure(write_through=False, line_buffering=True)
instead_of_pytest()
file, name, arguments = sys.argv[1:]
getattr(load_file(file), name)(*json.loads(arguments))
