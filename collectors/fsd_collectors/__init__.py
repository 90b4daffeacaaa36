"""Traces: what decoding saw, kept, so that thresholds, predictors and speed can be studied without a GPU.

`schema.py` says what a row holds, `manifest.py` what a run is. `collecting/` makes rows, `store/` keeps them, `replay/`
asks them, `describing/` shows them.
"""
