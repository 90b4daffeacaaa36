"""Decoding speed beside transformers: `decode.py`."""
