"""Adaptive thresholds (`adaptive.py`) and budgets (`budgets.py`)."""
