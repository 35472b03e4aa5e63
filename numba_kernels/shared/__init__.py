"""Memory that the ranks of one node share.

window.py      memory of all ranks of a node, mapped into each of them
node_array.py  the one array that describes the node to a kernel
board.py       counters of arrivals (barriers), and what each rank is waiting in
stage.py       a staging buffer for vectors that lie outside the window
"""
