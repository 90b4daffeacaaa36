"""How the steps of a round are called: directly, compiled, or captured as CUDA graphs."""
