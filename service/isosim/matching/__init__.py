"""From texts to their matching pairs: candidates, labels, thresholds, clusters. Numpy only, no files, no network."""
