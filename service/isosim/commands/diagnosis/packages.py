"""Checks of the optional packages: ONNX Runtime, and packages for making calibrations."""

from collections.abc import Iterator
from importlib import import_module, metadata

from isosim.commands.diagnosis import Finding, fault, ok, warning

RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-rocm")


def look() -> Iterator[Finding]:
    yield runtime()
    yield training()


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def runtime() -> Finding:
    """Checks that exactly one ONNX Runtime package is installed; two packages overwrite each other's files."""
    there = [f"{name} {version}" for name in RUNTIMES if (version := version_of(name))]
    if not there:
        return fault("onnxruntime", "not installed", "pip install 'isosim[cpu]', or 'isosim[gpu]' for an NVIDIA GPU")
    if len(there) > 1:
        return fault(
            "onnxruntime",
            f"{' and '.join(there)} overwrite each other",
            f"pip uninstall {' '.join(name.split()[0] for name in there)}, then install the one that you need",
        )
    try:
        import_module("onnxruntime")
    except ImportError as error:
        return fault("onnxruntime", f"{there[0]} does not load: {error}", "install it anew, for this Python and system")
    return ok("onnxruntime", there[0])


def training() -> Finding:
    """Checks the packages for making calibrations. The worker and `isosim calibrate` need them, the server does not."""
    version = version_of("torch")
    if version is None:
        return warning(
            "training",
            "without torch no calibration is made here; /calibrate answers 503 unless ISOSIM_LOCAL_WORKER is false",
            "pip install 'isosim[train]', or run `isosim worker` elsewhere and set ISOSIM_LOCAL_WORKER=false",
        )
    missing = [name for name in ("transformers", "scikit-learn", "scipy", "onnx", "onnxscript") if not version_of(name)]
    if missing:
        return fault("training", f"torch {version} without {', '.join(missing)}", "pip install 'isosim[train]'")
    return ok("training", f"torch {version}")
