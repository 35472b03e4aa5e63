"""ipyparallel's controller, which notices within two seconds that a node is cut off.

    python -m tutorial_dl.cluster controller --profile-dir=FOLDER ...

When a cable is out, TCP waits for a quarter of an hour before it ends a connection. The controller
sends a heartbeat each half second, but it takes half a minute of silence to call an engine lost,
because an engine that computes may be late. The kernel of its node is never late: it acknowledges
what it receives, whatever its processes do. So heartbeats that were not acknowledged for 1.5 s end
their connection, which clients see (job_watch.py). Engines look at theirs, too (engine.py).
"""

import asyncio

import zmq
from ipyparallel.controller import app, heartmonitor

UNACKNOWLEDGED = 1500  # ms


def start_heartmonitor(**how) -> None:
    """Send heartbeats and receive the answers, in a process of its own, as ipyparallel's does."""
    context = zmq.Context()
    context.setsockopt(zmq.TCP_MAXRT, UNACKNOWLEDGED)  # of its sockets
    loop = asyncio.new_event_loop()
    loop.run_until_complete(heartmonitor._setup_heartmonitor(ctx=context, **how))
    loop.run_forever()


def main() -> None:
    app.start_heartmonitor = start_heartmonitor
    app.main()
