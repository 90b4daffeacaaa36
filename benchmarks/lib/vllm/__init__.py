"""Parts of `vllm_fsd.py` and `vllm_calibration.py`: speeds, retention and calibrations with either engine."""
