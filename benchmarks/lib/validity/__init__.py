"""Validity of certificates, by simulation: `validity.py`."""
