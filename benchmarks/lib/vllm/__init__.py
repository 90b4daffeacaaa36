"""Parts of `vllm_fsd.py`: what is timed, and what is claimed of it."""
