"""Checkpoints: format.py is how files are written and found; contents.py and master.py what is in
them, for runs in step and for runs with a master.
"""
