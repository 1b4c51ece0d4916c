"""isosim: calibrated sentence similarity as a REST microservice."""

CONTRACT = "1.1"  # of the HTTP contract; docs/reference/compatibility.md says when which number is raised


def __getattr__(name: str) -> str:
    """`__version__`, read when it is asked for: the package's metadata takes 30 ms, and most commands need none."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("isosim")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
