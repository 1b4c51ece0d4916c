"""`/similarity` and `/embed`, and the way from texts to scores that all scoring routes share."""
