"""The search on the tuning part: from an objective to the settings that are frozen for certification."""
