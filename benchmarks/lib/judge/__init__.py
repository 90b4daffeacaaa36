"""A judge of mismatches beside all scores: a pair that is sure of its words, labels, and what a perfect judge could."""
