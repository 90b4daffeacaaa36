"""Engines in processes of their own that decode the same work in turns: ours, vLLM and transformers."""
