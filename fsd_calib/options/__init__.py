"""What users ask for: each field once, with its type, default, meaning and rules.

The options of commands, the keys of `run.yaml`, Python's keywords and what a run saves are derived from these models.
Importing this imports nothing heavy.
"""
