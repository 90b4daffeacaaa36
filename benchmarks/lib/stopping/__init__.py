"""Early stopping of drafts: `predictor.py`."""
