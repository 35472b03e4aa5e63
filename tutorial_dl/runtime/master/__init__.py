"""Masters, workers, and everything between them except the rule (tutorial_dl.strategies).

loop.py                  which part this process has, and the loop that it runs
topology.py              which rank has which role, and the stars that connect them
master.py                what every master does; top_master.py, hierarchical_master.py (its workers
                         are sub-masters) and sub_master.py what each kind adds
worker.py, client.py     the worker, and its end of the connection to a master
asynchronous_tasks.py    what there is to do, handed out share by share; synchronous_tasks.py: in
                         rounds; task_batches.py: the samples of a task
messages.py              what masters and workers tell each other; outcome.py: how the run ended
ledger.py                work that the groups of a hierarchy have begun and not ended
validation.py            validation as work that is handed out
"""
