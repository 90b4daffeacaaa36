"""Stopping rules, which end a draft early: published ones and the predictor's own, in decoding and in replay."""
