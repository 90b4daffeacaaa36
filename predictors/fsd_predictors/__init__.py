"""Acceptance predictors and the early stop they drive. Nothing yet."""
