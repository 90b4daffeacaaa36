"""Tasks that a file in YAML describes: data, prompt, examples, extraction and grading, without code."""
