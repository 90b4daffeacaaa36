"""When to stop drafting: rules, one of which asks a predictor, in the loop and in replay."""
