"""Checks of the machine: cores, memory, port."""

import importlib.util
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from isosim.commands.diagnosis import Finding, fault, ok, warning
from isosim.encoders.device import memory_limit, plan_resident, usable_cores
from isosim.encoders.onnx_engine import choose_providers, on_gpu
from isosim.encoders.store import EncoderStore
from isosim.errors import IsosimError
from isosim.settings import Settings

CGROUP = Path("/sys/fs/cgroup")
RESIDENT = 400 * 2**20  # bytes; measured: 385 MiB for a server after ten minutes under load


def look(settings: Settings) -> Iterator[Finding]:
    yield cores()
    yield memory()
    yield from calibrations(settings)
    yield port(settings)


def cores(root: Path = CGROUP) -> Finding:
    allowed = len(os.sched_getaffinity(0))
    used = usable_cores(root)
    try:
        quota, period = (root / "cpu.max").read_text().split()
        share = int(quota) / int(period)
    except (OSError, ValueError):  # no limit: the file holds `max`, or is missing (no cgroup v2)
        return ok("cores", f"{used} (no limit by cgroup)")
    summary = f"{used} of {allowed}; cgroup limit {share:g}"
    if share < 1 or (share < allowed and share != int(share)):
        return warning(
            "cores", summary, "set a whole number of cores: a fraction throttles the process during requests"
        )
    return ok("cores", summary)


def memory(root: Path = CGROUP) -> Finding:
    limit = memory_limit(root)
    if limit is None:
        return ok("memory", "no limit by cgroup")
    summary = f"limit {limit / 2**20:,.0f} MiB"
    if limit < RESIDENT:
        return warning("memory", summary, f"the default encoder under load takes up to {RESIDENT / 2**20:.0f} MiB")
    return ok("memory", summary)


def calibrations(settings: Settings, root: Path = CGROUP) -> Iterator[Finding]:
    """Checks that the memory for calibrations (ISOSIM_RESIDENT_BYTES) fits into the memory limit."""
    try:
        artifact = EncoderStore.at(settings.model_store, settings.seed_store).find(settings.encoder)
        gpu = on_gpu(choose_providers(settings.providers, artifact.calibrator))
        weights = 0 if artifact.kind != "onnx" else artifact.encoder.stat().st_size
    except (IsosimError, OSError):  # another check reports this error
        return
    limit, twice = memory_limit(root), not gpu and (settings.runs or usable_cores(root)) > 1
    held = settings.memory_cache_bytes + weights * (2 if twice else 1)
    jobs = settings.local_worker and importlib.util.find_spec("torch") is not None
    room = plan_resident(limit, held, gpu=gpu, jobs=jobs)
    given = settings.resident_bytes
    if limit is not None and given > plan_resident(limit, held, gpu=gpu):
        yield warning(
            "calibrations",
            f"calibrations may take {given / 2**20:,.0f} MiB, but the memory limit leaves only {room / 2**20:,.0f} MiB",
            "unset ISOSIM_RESIDENT_BYTES, so that the value follows the memory limit, or raise that limit",
        )
    else:
        yield ok("calibrations", f"at most {(given or room) / 2**20:,.0f} MiB are kept in memory")


def port(settings: Settings) -> Finding:
    """Checks that the server can bind its address, or that an isosim server listens there already."""
    where = f"{settings.host}:{settings.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # uvicorn sets this option too
            probe.bind(address)
    except PermissionError:
        return fault("port", f"{where} needs a privilege", "choose ISOSIM_PORT above 1023")
    except OSError as error:
        if alive(settings):
            return ok("port", f"isosim is serving on {where}")
        return fault(
            "port", f"{where}: {error.strerror}", "stop the program that uses it, or set ISOSIM_PORT or ISOSIM_HOST"
        )
    return ok("port", f"{where} is free")


def alive(settings: Settings) -> bool:
    """Whether an isosim server listens on the address."""
    host = "127.0.0.1" if settings.host in {"0.0.0.0", "::"} else settings.host  # noqa: S104 - compared, not bound
    try:
        with urllib.request.urlopen(f"http://{host}:{settings.port}/livez", timeout=2) as answer:
            return bool(answer.status == 200 and b'"alive"' in answer.read(200))
    except (OSError, ValueError, urllib.error.URLError):
        return False
