"""ipyparallel's controller and engine, which notice within two seconds that a node is cut off.

    python -m tutorial_dl.cluster.heartbeats controller --profile-dir=FOLDER ...
    python -m tutorial_dl.cluster.heartbeats engine --mpi --profile-dir=FOLDER ...

When a cable is out, TCP waits for a quarter of an hour before it ends a connection. The controller
sends a heartbeat each half second, but it takes half a minute of silence to call an engine lost,
because an engine that computes may be late. The kernel of its node is never late: it acknowledges
what it receives, whatever its processes do. So two limits of TCP are set on the connections for
heartbeats:

    controller   heartbeats that were not acknowledged for 1.5 s end the connection, which clients
                 see (job_watch.py)
    engine       after 2 s without a heartbeat, its kernel asks the other one each second whether
                 the connection still stands; if it does not, the engine connects again

A cluster on one machine has no cable, and runs ipyparallel's programs as they are. What is replaced
here (a context, a class, a function) is no interface of ipyparallel's.
"""

import sys
from unittest import mock

import zmq

UNACKNOWLEDGED = 1500  # ms
ASKING = {  # in seconds; 30 questions, because the controller gives the engine up then
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 2,
    zmq.TCP_KEEPALIVE_INTVL: 1,
    zmq.TCP_KEEPALIVE_CNT: 30,
}


class Context(zmq.Context):
    """Its sockets end a connection on which nothing is acknowledged."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.setsockopt(zmq.TCP_MAXRT, UNACKNOWLEDGED)


def start_heartmonitor(**how) -> None:
    """Send heartbeats and receive the answers, in a process of its own."""
    from ipyparallel.controller import heartmonitor

    with mock.patch.object(zmq, "Context", Context):
        heartmonitor.start_heartmonitor(**how)


def controller() -> None:
    from ipyparallel.controller import app

    app.start_heartmonitor = start_heartmonitor
    app.main()


def engine() -> None:
    from ipyparallel.engine import app

    class Heart(app.Heart):
        """Receives heartbeats and answers them, in a thread without Python's lock."""

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            for option, value in ASKING.items():
                self.device.setsockopt_in(option, value)

    app.Heart = Heart
    app.main()


if __name__ == "__main__":
    {"controller": controller, "engine": engine}[sys.argv.pop(1)]()
