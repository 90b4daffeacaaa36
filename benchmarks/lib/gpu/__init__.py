"""Measurements that need a GPU: `gpu.py`."""
