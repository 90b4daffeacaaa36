"""Does a fuzzy configuration keep what was asked for? Tests, bounds, and what a number of problems can show."""
