"""The cost of traces, and how well they foretell decoding: `collect.py`."""
