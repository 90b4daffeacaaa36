"""Adaptive thresholds and budgets: `adaptive.py`, `budgets.py`."""
