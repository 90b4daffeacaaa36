"""Acceptance predictors: forecasts of which drafted tokens will be accepted, and stopping rules that use them.

`features/` defines what a model sees, `datasets/` builds its examples from traces, `models/` holds the models,
`training/` fits and evaluates a predictor, and `stopping/` ends drafts by it, while decoding and in replay.
"""
