"""The search on the tuning part: from a goal to the configurations that are frozen for the certificate."""
