"""Calibrations on a pool of decodings, and divergences: `calibrate.py`, `regret.py`, `procedures.py`, `divergences.py`."""
