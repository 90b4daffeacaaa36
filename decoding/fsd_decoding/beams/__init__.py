"""Beams: beam search and beam sampling by the target alone, and speculatively, with a draft."""
