"""The search on the tuning part: from an objective to the configurations that are frozen for certification."""
