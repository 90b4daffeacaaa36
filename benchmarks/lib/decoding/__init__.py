"""Decoding speed compared with transformers: `decode.py`."""
