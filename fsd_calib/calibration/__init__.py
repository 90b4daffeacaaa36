"""Calibration, step by step: from a task, two models and a goal to a threshold profile."""
