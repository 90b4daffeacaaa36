"""From a task and two models to rows: along the target, or on-policy."""
