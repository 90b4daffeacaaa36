"""Engines: what decodes a task's prompts for a calibration, each behind the interface in `base.py`."""
