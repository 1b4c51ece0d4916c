"""Who may do what, and how often: keys, their grants, rate limits."""
