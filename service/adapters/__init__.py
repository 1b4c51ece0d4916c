"""Everything outside the process: stores, encoders, Redis, jobs. Knows neither HTTP nor settings."""
