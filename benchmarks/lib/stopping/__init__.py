"""Early stops: `predictor.py`."""
