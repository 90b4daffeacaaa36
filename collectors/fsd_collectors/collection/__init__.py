"""Collection of traces from a task and two models, along the target or on-policy."""
