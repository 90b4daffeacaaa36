"""What the plugin reports of serving: counters, drift, and records of drafted tokens."""
