"""Examples of numba_kernels.trace."""

# %% What this process did, and when
# shows: Recording, recording, span, each, LIMIT
from numba_kernels import Team, trace

team = Team()
with trace.Recording(limit=1000) as seen, trace.span("epoch"):  # trace.LIMIT; recording.py
    for _ in trace.each("load", [1, 2]):
        team.barrier()
for name, begin, end in seen.spans:
    print(f"{name:8} began after {begin - seen.begin >= 0}, took time: {end >= begin}")

# %% Spans that cover each other
# shows: nested
from numba_kernels.trace import nested

nested([("b", 3, 4), ("a", 0, 9), ("c", 5, 8)])

# %% [4 ranks] One clock for all ranks
# shows: clocks
from numba_kernels import Team
from numba_kernels.trace import clocks

now, offset, error = clocks.compare_clocks(Team())
print("offset", offset, "ns")
