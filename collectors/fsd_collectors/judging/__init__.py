"""Labels of mismatches, of which a judge is trained: what becomes of a text where it takes the draft's token.

`reading.py` finds the mismatches of a text, `writing.py` lets the target go on behind a swap, `chains.py` says which
mismatches of a problem are swapped, `collect.py` does so for a task, and `labels.py` reads what was collected.
"""
