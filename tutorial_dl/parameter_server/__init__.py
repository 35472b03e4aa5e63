"""Masters and workers of asynchronous training; the rules are in tutorial_dl.strategies.

tasks.py, rounds.py   the work to do; items.py   its samples
words.py              the message protocol between masters and workers
center.py             a master's weights, and staleness
hub.py                base of all masters; top.py, groups.py, sub_master.py   each kind
worker.py, server.py  workers
run.py                runs this process's role; saving.py   checkpoints
"""
