"""Memory that the ranks of one node share.

window.py      memory of all ranks of a node, mapped into each of them
node_array.py  the one array that describes the node to a kernel
board.py       counters of arrivals (barriers), and what each rank is waiting in
segments.py    what the MPI library itself shares, and how it is not left behind
stage.py       a staging buffer for vectors that lie outside the window
"""
