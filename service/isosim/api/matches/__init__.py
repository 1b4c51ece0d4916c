"""`/matches`: jobs that find the pairs of texts that mean the same, views of their results, and judgements on pairs."""
