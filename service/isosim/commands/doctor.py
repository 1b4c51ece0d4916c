"""`isosim doctor`: check what a server needs, ask a running server for its state, and say how to fix faults.

It loads no encoder, so it can run in the container of a server without exceeding the memory limit.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import httpx2
import typer
from pydantic import ValidationError
from redis import Redis
from redis.exceptions import RedisError

from isosim.access.key_file import Keys, describe
from isosim.commands.shared import AsJson, EncoderId, RedisUrl, Store, settings_with
from isosim.commands.terminal import FAILED, in_one_line, invalid_settings, print_json, show
from isosim.domains.store import DomainStore
from isosim.encoders.cache import PROBED
from isosim.encoders.spec import Engine
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import IsosimError, Unavailable
from isosim.redis_connection import why, wrong_role
from isosim.scoring.calibration import DEFAULT
from isosim.settings import Settings, check_exposure, unread
from isosim.store.artifacts import verified
from isosim.store.blobs import check, opened
from isosim.store.identity import identify

TIMEOUT = 5.0  # s for an answer of the server or of Redis; unmeasured
LOOKUPS = 20  # number of timed lookups in Redis
RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-rocm")
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to ask a server that binds all addresses


@dataclass(frozen=True)
class Finding:
    """Result of a check. `remedy` says how to fix a fault or warning."""

    state: Literal["ok", "warning", "fault"]
    check: str
    found: str
    remedy: str | None = None


def doctor(
    model_store: Store = None, encoder: EncoderId = None, redis_url: RedisUrl = None, as_json: AsJson = False
) -> None:
    """Look for faults in the set-up, and say how to fix them.

    Checks what `isosim serve` uses with the same settings, and asks the server that runs with them for its state. The
    exit code is 1 if there is a fault, and 0 if there are only warnings.
    """
    findings = list(examine(model_store=model_store, encoder=encoder, redis_url=redis_url))
    count = Counter(finding.state for finding in findings)
    if as_json:
        counts = {"faults": count["fault"], "warnings": count["warning"]}
        print_json({"ok": not count["fault"], **counts, "checks": findings})
    else:
        signs = {"ok": "ok", "warning": "WARNING", "fault": "FAULT"}
        show(("", "check", "found", "remedy"), [(signs[f.state], f.check, f.found, f.remedy) for f in findings])
        if sys.stdout.isatty():
            print(f"{count['fault']} faults, {count['warning']} warnings, {count['ok']} ok")
    if count["fault"]:
        raise typer.Exit(FAILED)


def examine(**given: Any) -> Iterator[Finding]:
    """Yields the findings of all checks. If a setting is invalid, checks only the settings."""
    for name, nearest in unread(os.environ).items():
        ignored = f"{name} is not a setting and has no effect"
        if nearest is None:
            yield Finding("warning", "settings", ignored, f"unset {name}")
        else:
            yield Finding("fault", "settings", ignored, f"did you mean {nearest}?")
    try:
        settings = settings_with(**given)
    except ValidationError as error:
        for problem in invalid_settings(error):
            yield Finding("fault", "settings", problem, "correct it as docs/reference/settings.md explains")
        return
    yield Finding("ok", "settings", f"set: {', '.join(sorted(settings.model_fields_set)) or 'none'}")
    yield runtime(settings.engine)
    yield access(settings)
    yield server(settings)
    yield from store(settings)
    yield from redis(settings)


def runtime(engine: Engine | None) -> Finding:
    """Checks that exactly one ONNX Runtime is installed, because two overwrite each other's files, and that the engine
    is installed."""
    check, packages = "onnxruntime", [one for name in RUNTIMES for one in metadata.distributions(name=name)]
    if not packages:
        return Finding("fault", check, "not installed", "pip install 'isosim[cpu]', or 'isosim[gpu]' for an NVIDIA GPU")
    found = " and ".join(f"{one.name} {one.version}" for one in packages)
    if len(packages) > 1:
        remedy = f"pip uninstall {' '.join(one.name for one in packages)}, then install the one that you need"
        return Finding("fault", check, f"{found} overwrite each other", remedy)
    try:
        available = import_module("onnxruntime").get_available_providers()
    except ImportError as error:
        return Finding("fault", check, f"{found} does not load: {error}", "install it again for this Python")
    if engine == "cuda" and "CUDAExecutionProvider" not in available:
        remedy = "pip install 'isosim[gpu]' in place of 'isosim[cpu]', or correct ISOSIM_ENGINE"
        return Finding("fault", check, f"{found} has no CUDA", remedy)
    if engine == "openvino" and find_spec("openvino") is None:
        return Finding("fault", "openvino", "not installed", "pip install 'isosim[openvino]', or correct ISOSIM_ENGINE")
    return Finding("ok", check, f"{found}, which has {', '.join(available)}")


def access(settings: Settings) -> Finding:
    """Checks that the network cannot reach a server without keys."""
    if settings.api_keys_file is not None:
        return keys(settings.api_keys_file)
    try:
        check_exposure(settings)
    except Unavailable as error:
        return Finding("fault", "access", str(error), "set ISOSIM_API_KEYS_FILE")
    if settings.allow_anonymous:
        everyone = f"anyone who can reach {settings.host} may do everything"
        return Finding("warning", "access", everyone, "set ISOSIM_API_KEYS_FILE")
    return Finding("ok", "access", f"{settings.host} only, without keys")


def keys(path: Path) -> Finding:
    """Checks that the key file is valid, and that only its owner can read and write it."""
    try:
        count, mode = Keys(path).count, path.stat().st_mode
    except (OSError, ValueError) as error:
        return Finding(
            "fault", "access", describe(error, path), "correct the file; isosim keys new prints a valid line"
        )
    if mode & 0o022:
        return Finding("fault", "access", f"other users can write {path} and so add keys", f"chmod 600 {path}")
    if mode & 0o004:
        return Finding("warning", "access", f"all users of this machine can read {path}", f"chmod 600 {path}")
    if not count:
        return Finding("warning", "access", f"{path} has no key: requests get 401", f"isosim keys new --add {path}")
    return Finding("ok", "access", f"{path}: {count} keys")


def server(settings: Settings) -> Finding:
    """Asks the server at the address of the settings for its state, if there is one."""
    host = LOOPBACK.get(settings.host, settings.host)
    where = f"{host}:{settings.port}"
    try:
        with httpx2.Client(timeout=TIMEOUT, trust_env=False) as http:
            answer = http.get(f"http://{f'[{host}]' if ':' in host else host}:{settings.port}/readyz")
        found = answer.json()["error" if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE else "encoder"]
    except httpx2.ConnectError:
        return Finding("ok", "server", f"none runs at {where}")
    except httpx2.TransportError as error:
        return Finding("fault", "server", f"{where} does not answer: {error}", "see its log; restart it if it hangs")
    except (ValueError, KeyError, TypeError):
        remedy = "stop it, or set ISOSIM_PORT or ISOSIM_HOST"
        return Finding("fault", "server", f"the program at {where} is not isosim", remedy)
    if answer.is_success:
        return Finding("ok", "server", f"{where} is ready, with encoder {found[:12]}")
    return Finding("fault", "server", f"{where} is not ready: {found}", "see its log; restart it if it hangs")


def store(settings: Settings) -> Iterator[Finding]:
    """Checks the store's format and both conditions of a write, and compares files with the hashes in manifests."""
    try:
        blobs = opened(settings.model_store)
        identify(blobs)
        check(blobs)
    except (IsosimError, OSError) as error:
        remedy = "set ISOSIM_MODEL_STORE, or make one: isosim export; for a bucket see docs/how-to/operations.md"
        yield Finding("fault", "store", in_one_line(error), remedy)
        return
    yield Finding("ok", "store", f"{blobs.address}: read and written, and conditional writes work")
    encoders, sound = EncoderStore.at(settings.model_store, settings.seed_store), []
    for name in filter(None, (settings.encoder, settings.next_encoder)):
        try:
            artifact = encoders.find(name)
            verified(artifact.folder)
        except (IsosimError, OSError) as error:
            remedy = f"isosim export --encoder {name}, or give the folder or hub id that it comes from"
            yield Finding("fault", "encoder", in_one_line(error), remedy)
        else:
            sound.append(artifact)
            yield engine_of(artifact) or Finding("ok", "encoder", described(artifact))
    domains = DomainStore(blobs)
    names = sorted({DEFAULT, *domains.names()})
    findings = domains.read_each(names, partial(domain, domains, sound))
    yield from (finding for found in findings for finding in found)
    checked = "records and champions' files" if sound else "only records"
    yield Finding("ok", "domains", f"{findings.count([])} of {len(names)} without a fault; checked: {checked}")


def engine_of(artifact: EncoderArtifact) -> Finding | None:
    """The fault of an encoder at bf16 without OpenVINO."""
    if artifact.spec.number_format != "bf16" or find_spec("openvino") is not None:
        return None
    return Finding("fault", "encoder", f"{artifact.id} needs OpenVINO", "pip install 'isosim[openvino]'")


def described(artifact: EncoderArtifact) -> str:
    if artifact.kind == "vectors":
        return f"{artifact.id} runs no model; its users send vectors of {artifact.spec.dim} numbers"
    if artifact.remote is not None:
        return f"{artifact.id} runs at {artifact.remote.url}; to check it: isosim encoder check {artifact.id}"
    which = f"{artifact.id}, {artifact.spec.precision}, {artifact.digest[:12]}"
    return f"{which}: all files match their hashes; licence of the weights: {artifact.licence or 'not stated'}"


def domain(domains: DomainStore, encoders: Sequence[EncoderArtifact], name: str) -> list[Finding]:
    """Checks the record of a domain, and the files of its champions for these encoders."""
    try:
        record = domains.read(name)
    except (IsosimError, OSError) as error:
        return [Finding("fault", "domain", in_one_line(error), f"isosim store repair {name}")]
    findings = []
    for encoder in encoders:
        anew = f"isosim calibrate FILE --domain {name} --encoder {encoder.id} --promote always"
        champion = record.served(encoder.digest).champion
        if champion is None:
            if name == DEFAULT:
                lacking = f"no default calibration for {encoder.id}: percentiles are null"
                findings.append(Finding("warning", "domain", lacking, anew))
        elif (damage := damage_of(domains, name, champion)) is not None:
            made = [number for number, version in record.versions.items() if version.encoder == encoder.digest]
            intact = next((number for number in sorted(made)[::-1] if damage_of(domains, name, number) is None), None)
            other = f"isosim domains promote {name} {intact} --encoder {encoder.id}, or " if intact is not None else ""
            findings.append(Finding("fault", "domain", damage, other + anew))
    if encoders and record.versions and not any(record.served(encoder.digest).champion for encoder in encoders):
        first = encoders[0].id
        lacking = f"{name} has no champion for {first}, so that requests for it are answered 409"
        anew = f"isosim calibrate FILE --domain {name} --encoder {first}, or isosim domains promote {name} NUMBER"
        findings.append(Finding("warning", "domain", lacking, anew))
    return findings


def damage_of(domains: DomainStore, name: str, number: int) -> str | None:
    """Why a version cannot be read; None if it can."""
    try:
        domains.load(name, number)
    except (IsosimError, OSError) as error:
        return in_one_line(error)
    return None


def redis(settings: Settings) -> Iterator[Finding]:
    """Checks that Redis is reachable and can be a cache."""
    if settings.redis_address is None:
        yield Finding("ok", "redis", "not set: cache and limits in the memory of each process")
        return
    try:
        with Redis.from_url(settings.redis_address, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT) as client:
            facts = client.info()
            if (wrong := wrong_role(facts)) is not None:
                yield Finding("fault", "redis", *wrong)
                return
            begun = time.perf_counter()
            for _ in range(LOOKUPS):
                client.mget(PROBED)  # the command with which requests read vectors
            yield fitness(facts, (time.perf_counter() - begun) / LOOKUPS, settings.redis_timeout)
    except (RedisError, OSError, ValueError) as error:
        remedy = "start it, correct ISOSIM_REDIS_URL, or grant isosim's user the rights that SECURITY.md lists"
        yield Finding("fault", "redis", f"cannot be used: {why(error)}", remedy)


def fitness(facts: Mapping[str, Any], seconds: float, timeout: float) -> Finding:
    """Checks that lookups are fast enough, and that a full Redis evicts vectors.

    Args:
        seconds: mean duration of a lookup; one that takes longer than `timeout` (s) counts as a miss.
    """
    policy, limit = facts.get("maxmemory_policy"), facts.get("maxmemory", 0)
    memory = f"maxmemory {limit / 2**20:,.0f} MiB" if limit else "maxmemory not set"
    found = f"version {facts['redis_version']}, {1e3 * seconds:.2f} ms a lookup, {memory}, {policy}"
    if seconds > timeout:
        remedy = (
            f"run Redis nearer to isosim, or wait longer than {timeout:g} s: ?socket_timeout=0.2 in ISOSIM_REDIS_URL"
        )
        return Finding("fault", "redis", f"{found}: lookups count as misses", remedy)
    if not limit or policy == "noeviction":
        return Finding("warning", "redis", found, "set maxmemory, and maxmemory-policy volatile-lru")
    return Finding("ok", "redis", found)
