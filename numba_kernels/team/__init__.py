"""Teams: ranks that communicate, and never hang.

team.py      what users call; collectives.py: the part of it that other teams can offer, too
waiting.py   bounded waits, with a look at the mailbox between them
failure.py   a rank fails: how the others hear of it; mailbox.py carries the letters;
             short_traceback.py: what a script shows of it
stall.py     reports of long waits; activity.py: what a process is doing, for its other threads
recovery.py  makes a team usable again; regrouping.py: a new one of the ranks that are left
exchange.py  messages that are on their way while their ranks compute
bytes.py     objects and bytes over a team
world.py     what teams are made from; windows.py their shared memory; siblings.py: which ranks
             have begun to make it
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "activity",
        "bytes",
        "collectives",
        "exchange",
        "failure",
        "mailbox",
        "recovery",
        "regrouping",
        "stall",
        "waiting",
        "windows",
        "world",
    ],
    submod_attrs={"team": ["Team"], "failure": ["abort_all"]},
)
