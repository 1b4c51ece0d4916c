"""`/domains`: versions, champions, thresholds, labels, and moves to another encoder."""
