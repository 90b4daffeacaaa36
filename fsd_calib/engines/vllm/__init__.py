"""vLLM as the engine of a calibration, through the plugin in `fsd_calib/vllm_plugin`."""
