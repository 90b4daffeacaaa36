"""The validity of certificates, by simulation: `validity.py`."""
