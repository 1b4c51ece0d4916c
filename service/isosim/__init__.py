"""isosim: calibrated sentence similarity as a REST microservice."""

import os

# Otherwise ONNX Runtime sends usage data to Microsoft, and keeps a device id in the home folder. It reads the variable
# when it is imported. Python runs this file before any module of ours imports it, in every process.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

CONTRACT = "1.0"  # version of the HTTP contract; docs/reference/compatibility.md says which changes raise it


def __getattr__(name: str) -> str:
    """Reads `__version__` only when it is used: reading takes 30 ms, and most commands do not need the version."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415

        return version("isosim")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
