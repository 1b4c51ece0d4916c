"""`/domains`: versions, champions, thresholds and labels."""
