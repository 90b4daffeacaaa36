"""Traces: records of every drafted token, from which thresholds, predictors and speed are studied without decoding.

`schema.py` defines the columns and `manifest.py` the facts of a run. `collection/` makes the rows, `store/` writes and
reads them, `replay/` works out other settings from them, `report/` describes and plots them.
"""
