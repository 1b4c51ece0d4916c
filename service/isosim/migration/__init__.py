"""Migration of a domain to another encoder: routing of requests, shadow scoring, equivalent thresholds."""
