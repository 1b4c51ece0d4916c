"""The service's concepts and rules; imports numpy and the standard library only."""
