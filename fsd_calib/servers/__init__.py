"""Servers that somebody else runs, calibrated, checked and tuned by what they answer and when."""
