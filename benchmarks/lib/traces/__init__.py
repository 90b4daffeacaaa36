"""The cost of traces, and how accurately replay predicts decoding: `collect.py`."""
