"""The service's ideas; numpy and the standard library only."""
