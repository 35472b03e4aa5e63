"""Masters, workers, and everything between them but the rule (tutorial_dl.strategies).

tasks.py, rounds.py   what there is to do; items.py   its samples
words.py              what masters and workers say to each other
center.py             a master's weights, and staleness
hub.py                what every master does; top.py, sub_master.py   what each kind does
worker.py, server.py  what workers do
run.py                who does what in this process; saving.py   checkpoints
"""
