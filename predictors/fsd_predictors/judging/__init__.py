"""Training of judges: which mismatches change the outcome."""
