"""Checks of Python and the installed packages."""

import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

from service.commands.diagnosis import Finding, fault, ok, warning

OLDEST_PYTHON = (3, 11)
RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-rocm")
PINS = Path(__file__).parents[3] / "constraints.txt"  # tested versions; exists in a clone, but not in a wheel


def look() -> Iterator[Finding]:
    yield python()
    yield dependencies()
    yield runtime()
    yield training()
    pinned = versions()
    if pinned is not None:
        yield pinned


def python() -> Finding:
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return fault("python", version, "use Python 3.11 or newer")
    return ok("python", version)


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def dependencies() -> Finding:
    """Checks that the package's requirements, without extras, are installed in allowed versions."""
    try:
        from packaging.requirements import Requirement  # noqa: PLC0415 - comes with ONNX Runtime, which may be missing
    except ImportError:
        return fault("packages", "'packaging', which comes with onnxruntime, is missing", "pip install 'isosim[cpu]'")
    wanted = [Requirement(line) for line in metadata.requires("isosim") or ()]
    base = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    odd = []
    for requirement in base:
        version = version_of(requirement.name)
        if version is None:
            odd.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            odd.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if odd:
        return fault("packages", "; ".join(odd), "pip install --upgrade isosim")
    return ok("packages", f"{len(base)} of {len(base)} installed")


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
            "without torch no calibration is made here; /calibrate answers 503 unless a worker runs elsewhere",
            "pip install 'isosim[train]', or run `isosim worker` on another machine",
        )
    missing = [name for name in ("transformers", "scikit-learn", "scipy", "onnx", "onnxscript") if not version_of(name)]
    if missing:
        return fault("training", f"torch {version} without {', '.join(missing)}", "pip install 'isosim[train]'")
    return ok("training", f"torch {version}")


def versions() -> Finding | None:
    """Compares installed versions with the tested ones; None if constraints.txt does not exist."""
    try:
        lines = PINS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    # A version may end in the build's label, like +cpu, which constraints.txt leaves out.
    installed = {name: version.partition("+")[0] for name in pins if (version := version_of(name))}
    other = [f"{name} {version}, tested {pins[name]}" for name, version in installed.items() if version != pins[name]]
    if other:
        shown = "; ".join(other[:5]) + (f"; and {len(other) - 5} more" if len(other) > 5 else "")
        return warning("tested versions", shown, "pip install --constraint constraints.txt -e '.[cpu,train]'")
    return ok("tested versions", "as in constraints.txt")
