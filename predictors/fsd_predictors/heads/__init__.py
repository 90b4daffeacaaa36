"""Training of EAGLE heads on the target's own texts."""
