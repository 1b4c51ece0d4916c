"""Access to everything outside the process: stores, encoders, Redis, jobs. Imports neither HTTP code nor settings."""
