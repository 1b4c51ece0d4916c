"""`isosim doctor`: check what a server needs, ask a running server for its state, and say how to fix faults.

It loads no encoder, so it can run in the container of a server without exceeding the memory limit.
"""

import errno
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, Literal

import httpx2
import typer
from pydantic import ValidationError
from redis import Redis
from redis.exceptions import RedisError

from isosim.access.key_file import Keys, describe
from isosim.commands.shared import AsJson, EncoderId, RedisUrl, Store, settings_with
from isosim.commands.terminal import FAILED, in_one_line, invalid_settings, print_json, show
from isosim.domains.domain import Version
from isosim.domains.store import DomainStore
from isosim.encoders.cache import PROBED
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
ERRORS = (IsosimError, OSError, RedisError, ImportError, ValueError)


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
    for name, (look, remedy) in CHECKS.items():
        yield from tried(name, partial(look, settings), remedy)


def tried(name: str, look: Callable[[], Iterable[Finding]], remedy: str) -> Iterator[Finding]:
    """The findings of a check. What it raises is a fault with this remedy."""
    try:
        yield from look()
    except ERRORS as error:
        found = in_one_line(error) if isinstance(error, IsosimError | OSError) else why(error)
        yield Finding("fault", name, found, remedy)


def runtime(settings: Settings) -> Iterator[Finding]:
    """Checks that one ONNX Runtime is installed, because two overwrite each other's files, and the wanted engine."""
    packages = [f"{one.name} {one.version}" for name in RUNTIMES for one in metadata.distributions(name=name)]
    found = " and ".join(packages)
    if len(packages) > 1:
        raise Unavailable(f"{found} overwrite each other")
    available = import_module("onnxruntime").get_available_providers()
    if settings.engine == "cuda" and "CUDAExecutionProvider" not in available:
        raise Unavailable(f"{found} has no CUDA, which ISOSIM_ENGINE wants")
    if settings.engine == "openvino" and find_spec("openvino") is None:
        raise Unavailable("OpenVINO is not installed, and ISOSIM_ENGINE wants it")
    yield Finding("ok", "onnxruntime", f"{found}, which has {', '.join(available)}")


def access(settings: Settings) -> Iterator[Finding]:
    """Checks that the network cannot reach a server without keys, and that only its owner can use the key file."""
    path = settings.api_keys_file
    if path is None:
        check_exposure(settings)
        open_to_all = f"anyone who can reach {settings.host} may do everything"
        if settings.allow_anonymous:
            yield Finding("warning", "access", open_to_all, "set ISOSIM_API_KEYS_FILE")
        else:
            yield Finding("ok", "access", f"{settings.host} only, without keys")
        return
    try:
        count, mode = Keys(path).count, path.stat().st_mode
    except (OSError, ValueError) as error:
        raise Unavailable(describe(error, path)) from None
    if mode & 0o026:
        who = "write it and so add keys" if mode & 0o022 else "read it"
        state: Literal["warning", "fault"] = "fault" if mode & 0o022 else "warning"
        yield Finding(state, "access", f"{path}: other users of this machine can {who}", f"chmod 600 {path}")
    elif not count:
        yield Finding("warning", "access", f"{path} has no key: requests get 401", f"isosim keys new --add {path}")
    else:
        yield Finding("ok", "access", f"{path}: {count} keys")


def server(settings: Settings) -> Iterator[Finding]:
    """Asks the server at the address of the settings for its state, if there is one."""
    host = LOOPBACK.get(settings.host, settings.host)
    where = f"{f'[{host}]' if ':' in host else host}:{settings.port}"
    try:
        answer = httpx2.get(f"http://{where}/readyz", timeout=TIMEOUT, trust_env=False)
    except httpx2.ConnectError:
        yield Finding("ok", "server", f"none runs at {where}")
        return
    except httpx2.TransportError as error:
        raise Unavailable(f"{where} does not answer: {error}") from None
    try:
        state = answer.json()["encoder" if answer.is_success else "error"]
    except (ValueError, KeyError, TypeError):
        raise Unavailable(f"the program at {where} is not isosim") from None
    if not answer.is_success:
        raise Unavailable(f"{where} is not ready: {state}")
    yield Finding("ok", "server", f"{where} is ready, with encoder {state[:12]}")


def store(settings: Settings) -> Iterator[Finding]:
    """Checks the store's format and both conditions of a write, and compares files with the hashes in manifests."""
    blobs = opened(settings.model_store)
    identify(blobs)
    try:
        check(blobs)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        remedy = "enlarge the volume, or delete results of matches; isosim store gc removes unused files"
        yield Finding("fault", "store", in_one_line(error), remedy)
    else:
        yield Finding("ok", "store", f"{blobs.address}: read and written, and conditional writes work")
    encoders: list[EncoderArtifact] = []
    remedy = f"isosim export --encoder {settings.encoder}, or give the folder or hub id that it comes from"
    yield from tried("encoder", partial(encoder, settings, settings.encoder, encoders), remedy)
    domains = DomainStore(blobs)
    names = sorted({DEFAULT, *domains.names()})
    found = domains.read_each(names, lambda name: [*tried("domain", partial(domain, domains, encoders, name),
                                                          f"isosim store repair {name}")])  # fmt: skip
    yield from (finding for one in found for finding in one)
    checked = "records and champions' files" if encoders else "only records"
    yield Finding("ok", "domains", f"{found.count([])} of {len(names)} without a fault; checked: {checked}")


def encoder(settings: Settings, name: str, sound: list[EncoderArtifact]) -> Iterator[Finding]:
    """Checks the files of an encoder, and adds it to `sound`."""
    artifact = EncoderStore.at(settings.model_store, settings.seed_store).find(name)
    verified(artifact.folder)
    sound.append(artifact)
    if artifact.spec.number_format == "bf16" and find_spec("openvino") is None:
        raise Unavailable(f"{artifact.id} needs OpenVINO: pip install 'isosim[openvino]'")
    which = f"{artifact.id}, {artifact.spec.precision}, {artifact.digest[:12]}"
    about = f"all files match their hashes; licence of the weights: {artifact.licence or 'not stated'}"
    yield Finding("ok", "encoder", f"{which}: {about}")


def intact(domains: DomainStore, name: str, version: Version, encoder: EncoderArtifact) -> bool:
    """Whether the version can serve in place of a damaged champion of the encoder."""
    if version.encoder != encoder.digest:
        return False
    try:
        domains.load(name, version)
    except (IsosimError, OSError):
        return False
    return True


def domain(domains: DomainStore, encoders: Sequence[EncoderArtifact], name: str) -> Iterator[Finding]:
    """Checks the record of a domain, and the files of its champions for these encoders."""
    record, served = domains.read(name), 0
    for one in encoders:
        champion = record.served(one.digest).champion
        anew = f"isosim calibrate FILE --domain {name} --encoder {one.id}"
        if champion is not None:
            served += 1
            try:
                domains.load(name, champion)
            except (IsosimError, OSError) as error:
                others = (number for number in sorted(record.versions, reverse=True) if number != champion)
                whole = next((other for other in others if intact(domains, name, record.versions[other], one)), None)
                other = "" if whole is None else f"isosim domains promote {name} {whole} --encoder {one.id}, or "
                yield Finding("fault", "domain", in_one_line(error), f"{other}{anew} --promote always")
        elif name == DEFAULT:
            yield Finding("warning", "domain", f"no default calibration for {one.id}: percentiles are null", anew)
    if encoders and record.versions and not served:
        lacking = f"{name} has no champion for {encoders[0].id}, so that requests for it are answered 409"
        anew = f"isosim calibrate FILE --domain {name} --encoder {encoders[0].id}"
        yield Finding("warning", "domain", lacking, f"{anew}, or isosim domains promote {name} NUMBER")


def redis(settings: Settings) -> Iterator[Finding]:
    """Checks that Redis can be a cache: that it answers fast enough, and evicts vectors when it is full."""
    if settings.redis_address is None:
        yield Finding("ok", "redis", "not set: cache and limits in the memory of each process")
        return
    with Redis.from_url(settings.redis_address, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT) as client:
        facts = client.info()
        if (wrong := wrong_role(facts)) is not None:
            raise Unavailable("; ".join(wrong))
        begun = time.perf_counter()
        for _ in range(LOOKUPS):
            client.mget(PROBED)  # the command with which requests read vectors
    yield fitness(facts, (time.perf_counter() - begun) / LOOKUPS, settings.redis_timeout)


def fitness(facts: Mapping[str, Any], seconds: float, timeout: float) -> Finding:
    """`seconds`: mean duration of a lookup; one that takes longer than `timeout` (s) counts as a miss."""
    policy, limit = facts.get("maxmemory_policy"), facts.get("maxmemory", 0)
    memory = f"maxmemory {limit / 2**20:,.0f} MiB" if limit else "maxmemory not set"
    found = f"version {facts['redis_version']}, {1e3 * seconds:.2f} ms a lookup, {memory}, {policy}"
    if seconds > timeout:
        remedy = f"run it nearer to isosim, or wait longer than {timeout:g} s: ?socket_timeout=0.2 in ISOSIM_REDIS_URL"
        return Finding("fault", "redis", f"{found}: lookups count as misses", remedy)
    if not limit or policy == "noeviction":
        return Finding("warning", "redis", found, "set maxmemory, and maxmemory-policy volatile-lru")
    return Finding("ok", "redis", found)


# Name, function and the remedy for what it raises.
CHECKS: dict[str, tuple[Callable[[Settings], Iterator[Finding]], str]] = {
    "onnxruntime": (runtime, "pip install one of 'isosim[cpu]', 'isosim[gpu]' and 'isosim[openvino]'"),
    "access": (access, "set ISOSIM_API_KEYS_FILE to a valid file; isosim keys new prints its lines"),
    "server": (server, "see its log; restart it if it hangs, or set ISOSIM_PORT or ISOSIM_HOST"),
    "store": (
        store,
        "mount the right one, or correct ISOSIM_MODEL_STORE; if it is lost or new, make one: isosim export, and "
        "restore a backup: isosim domains import ARCHIVE --promote --yes; for a bucket see docs/how-to/operations.md",
    ),
    "redis": (redis, "start it, correct ISOSIM_REDIS_URL, or grant isosim's user the rights that SECURITY.md lists"),
}
