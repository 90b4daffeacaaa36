"""Execution of a round's steps: eager, compiled by `torch.compile`, or captured as CUDA graphs."""
