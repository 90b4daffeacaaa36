"""What only a GPU can show: `gpu.py`."""
