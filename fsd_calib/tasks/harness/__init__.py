"""Tasks of an installed lm-evaluation-harness: their documents, prompts, filters and metrics."""
