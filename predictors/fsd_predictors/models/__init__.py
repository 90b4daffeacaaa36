"""Models of acceptance: classifiers from the features of a drafted token to the probability that it is accepted."""
