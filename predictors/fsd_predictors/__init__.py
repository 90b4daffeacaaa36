"""Acceptance predictors: forecasts of which drafted tokens will be accepted, and stopping rules that use them.

`features.py` defines what a model sees, `models/` holds the models, `training/` builds examples from traces, fits and
evaluates a predictor, and `stopping/` ends drafts by it, while decoding and in replay.
"""
