"""Masters, workers, and everything between them except the rule (tutorial_dl.strategies).

loop.py                  which part this process has, and the loop that it runs
topology.py              which rank has which role, and the stars that connect them
master.py                what every master does; top_master.py, hierarchical_master.py (its workers
                         are sub-masters) and sub_master.py what each kind adds
worker.py, client.py     the worker, and its end of the connection to a master
tasks.py                 what is left of an epoch, and how it is handed out; validation.py likewise
messages.py              what masters and workers tell each other
"""
