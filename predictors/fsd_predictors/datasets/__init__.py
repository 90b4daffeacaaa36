"""Training examples for models of acceptance, built from traces."""
