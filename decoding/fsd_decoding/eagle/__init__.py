"""EAGLE draft heads: a layer that drafts from the target's own hidden states."""
