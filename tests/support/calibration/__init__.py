"""Simulated calibrations, and what earlier ones left behind."""
