"""Certification of accuracy: tests, bounds, power, the attempt ledger and the holdout."""
