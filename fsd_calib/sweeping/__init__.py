"""A sweep: accuracy and tokens a round at given thresholds, of several tasks in one table, without a search."""
