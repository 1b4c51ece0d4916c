"""`/similarity`, `/percentile` and `/embed`, and the steps from texts to scores that all scoring routes share."""
