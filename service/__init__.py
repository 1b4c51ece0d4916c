"""isosim: calibrated sentence similarity as a REST microservice."""

CONTRACT = "1.1"  # version of the HTTP contract; docs/reference/compatibility.md says which changes raise it


def __getattr__(name: str) -> str:
    """Reads `__version__` only when it is used: reading takes 30 ms, and most commands do not need the version."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("isosim")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
