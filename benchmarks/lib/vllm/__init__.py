"""Parts of `vllm_fsd.py`: engines in processes of their own, what is timed, and what is claimed of it."""
