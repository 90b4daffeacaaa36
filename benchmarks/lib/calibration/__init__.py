"""Calibration on a pool of decodings (`calibrate.py`, `regret.py`)."""
