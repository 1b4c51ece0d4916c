"""Checks of the model store: folder or bucket, encoder, and champions."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from isosim.arrays import Vectors
from isosim.commands.diagnosis import Finding, fault, ok, warning
from isosim.domains.calibrations import StoredCalibrations
from isosim.domains.store import DomainStore
from isosim.encoders.onnx_engine import OnnxCalibrator, OnnxEncoder, choose_providers
from isosim.encoders.remote import check as check_probes
from isosim.encoders.store import JOINED, EncoderArtifact, EncoderStore
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import EncoderChanged, IsosimError
from isosim.scoring.calibration import DEFAULT
from isosim.scoring.similarity import cosine
from isosim.settings import Settings
from isosim.store.artifacts import verified
from isosim.store.blobs import Blobs, check, opened, remote
from isosim.store.identity import identify

CPU = ["CPUExecutionProvider"]
SENTENCES = ("A man is playing a guitar.", "Someone plays an instrument.")
# Encoder digest -> cosine of SENTENCES. The encoder below is all-MiniLM-L6-v2 in fp32; README.md shows the same cosine
# in its first answer.
KNOWN = {
    "9f5731ee66d8356acc380ac9202a33907c693fd43cdf64c6e33538f2531314c0": 0.6674459,
}
# Precision -> maximum difference between a component of a served vector and the component that the joined graph gives
# on the CPU. The export allows the same difference between torch and ONNX in fp32.
TOLERANCE = {"fp32": 1e-4}
LOOSE = 1e-2  # maximum difference for other precisions; not measured, but wrong kernels differ much more


NO_STORE = "set ISOSIM_MODEL_STORE, or make one: isosim export; for a bucket see docs/how-to/object-storage.md"


def look(settings: Settings) -> Iterator[Finding]:
    root = settings.model_store
    if remote(root):
        yield conditions(opened(root))
    else:
        yield conditions(opened(root.resolve()))
        yield space(root, settings.max_calibration_bytes)
    try:
        artifact = EncoderStore.at(root, settings.seed_store).find(settings.encoder)
        verified(artifact.folder)
    except (IsosimError, OSError) as error:
        yield fault(
            "encoder",
            str(error),
            f"isosim export --encoder {settings.encoder}, or give the folder or hub id that it comes from",
        )
        return
    licence = artifact.licence or "not recorded (exported by an earlier release)"
    which = f"{artifact.id}, {artifact.spec.precision}, {artifact.digest[:12]}"
    if artifact.kind == "vectors":
        yield ok("encoder", f"{artifact.id} runs no model; its users send vectors of {artifact.spec.dim} numbers")
    elif artifact.remote is not None:
        yield remote_encoder(artifact)
    else:
        yield ok("encoder", f"{which}: all files match their hashes; licence of the weights: {licence}")
        yield from providers(artifact, settings.providers)
        yield parity(artifact, settings.providers)
    yield from calibrations(root, artifact)


def remote_encoder(artifact: EncoderArtifact) -> Finding:
    """Checks that a remote encoder's server still gives the vectors that it gave when the encoder was registered."""
    where = f"{artifact.id} at {artifact.remote.url}" if artifact.remote else artifact.id
    try:
        off = check_probes(artifact)
    except EncoderChanged as error:
        return fault("encoder", f"{where}: {error}", "start the registered model there, or register the new one")
    except IsosimError as error:
        return fault("encoder", f"{where}: {error}", f"isosim encoder check {artifact.id}")
    return ok("encoder", f"{where} gives the same vectors as at its registration (relative difference up to {off:.0e})")


def conditions(blobs: Blobs) -> Finding:
    """Checks that there is a store that can be read and written, and that it keeps conditions of writes."""
    try:
        identify(blobs)
        check(blobs)
    except (IsosimError, OSError) as error:
        return fault("store", str(error), NO_STORE)
    return ok("store", f"{blobs.address}: read and written, and conditional writes work")


def folder(root: Path, name: str, remedy: str) -> Finding:
    """Checks that a folder of jobs can be read and written."""
    try:
        any(root.iterdir())
    except OSError as error:
        return fault(name, f"{root}: {error.strerror}", remedy)
    probe = root / f".doctor-{np.random.default_rng().integers(1 << 62):x}"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return fault(name, f"{root} cannot be written: {error.strerror}", "let the server's user write there")
    return ok(name, f"{root.resolve()}: read and written")


def space(root: Path, posted: int) -> Finding:
    """Checks the free space: below `posted` bytes (the largest upload) is a fault, below 10 × `posted` a warning."""
    try:
        free = shutil.disk_usage(root).free
    except OSError as error:
        return fault("disk", f"{root}: {error.strerror}", "create the folder, or correct the setting that names it")
    summary = f"{free / 2**30:,.1f} GiB free"
    if free < posted:
        return fault("disk", summary, f"make room: one posted text may have up to {posted / 2**20:.0f} MiB")
    if free < 10 * posted:
        return warning(
            "disk", summary, f"make room: a posted text may have up to {posted / 2**20:.0f} MiB, and several may wait"
        )
    return ok("disk", summary)


def providers(artifact: EncoderArtifact, wanted: tuple[str, ...]) -> Iterator[Finding]:
    """Checks that each execution provider loads; if one fails, ONNX Runtime silently uses the next."""
    try:
        chosen = choose_providers(wanted, artifact.calibrator)
    except IsosimError as error:
        yield fault("providers", str(error), "correct ISOSIM_PROVIDERS, or install the package that has it")
        return
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for name in chosen:
        failed = unloaded(artifact.calibrator, name, options)
        if failed is not None:
            yield fault("providers", f"{name}: {failed}", "install its driver and libraries, or set ISOSIM_PROVIDERS")
        else:
            others = [other for other in ort.get_available_providers() if other not in chosen]
            unused = f" (installed and unused: {', '.join(others)})" if others and name == chosen[-1] else ""
            yield ok("providers", f"{name} loads{unused}")


def unloaded(graph: Path, provider: str, options: ort.SessionOptions) -> str | None:
    """The reason why a provider does not load; None if it loads."""
    try:
        session = ort.InferenceSession(graph, options, providers=[provider])
    except Exception as error:  # noqa: BLE001 - drivers and libraries raise any exception
        return " ".join(str(error).split())[:200]
    return None if provider in session.get_providers() else "it is installed, but does not load"


def parity(artifact: EncoderArtifact, wanted: tuple[str, ...]) -> Finding:
    """Compares the served vectors of two sentences with the joined graph's vectors on the CPU. The joined graph is one
    file with encoder and calibrator. If KNOWN contains the encoder, also compares the sentences' cosine with KNOWN."""
    try:
        tokens = FastTokenizer(artifact.tokenizer, artifact.spec.max_length)
        ids = [token.ids for token in tokens([artifact.spec.prompt + text for text in SENTENCES], "right")]
        pad = artifact.spec.pad_token_id
        served = OnnxEncoder(artifact.encoder, choose_providers(wanted, artifact.calibrator), 0, pad)
        pooled = served(ids)
        joined: Callable[[list[Sequence[int]]], Vectors] = OnnxEncoder(artifact.joined, CPU, 0, pad)
        off = float(np.abs(pooled - joined(ids)).max())
    except Exception as error:  # noqa: BLE001 - any failure is the finding
        return fault(
            "parity", f"the encoder does not run: {error}", "run isosim export again, or set another ISOSIM_PROVIDERS"
        )
    similarity = float(cosine(pooled[:1], pooled[1:])[0])
    bar = TOLERANCE.get(artifact.spec.precision, LOOSE)
    if not off <= bar:
        return fault(
            "parity", f"served and exported vectors differ by {off:.1e}; they may differ by at most {bar:g}",
            "try ISOSIM_PROVIDERS='[\"CPUExecutionProvider\"]'; export the encoder anew",
        )  # fmt: skip
    expected = KNOWN.get(artifact.digest)
    if expected is not None and abs(similarity - expected) > bar:
        return fault(
            "parity", f"two known sentences score {similarity:.6f} instead of {expected:.6f}", "export it anew"
        )
    return ok(
        "parity",
        f"{JOINED} and the served model give the same vectors within {off:.0e}; two known sentences score "
        f"{similarity:.4f}",
    )


def remedy_for(domains: DomainStore, name: str, artifact: EncoderArtifact) -> str:
    """A remedy for a champion that cannot be loaded: promote a version that can be loaded, or calibrate anew."""
    anew = f"isosim calibrate FILE --domain {name} --encoder {artifact.id} --promote always"
    try:
        record = domains.read(name)
    except (IsosimError, OSError):
        return f"isosim store repair {name}"
    served = record.served(artifact.digest)
    for version in [served.previous, *sorted(record.versions, reverse=True)]:
        if version is None or version == served.champion:
            continue
        try:
            if domains.load(name, version).version.encoder != artifact.digest:
                continue
        except (IsosimError, OSError):
            continue
        if version == served.previous:
            return f"isosim domains rollback {name}, or {anew}"
        return f"isosim domains promote {name} {version}, or {anew}"
    return f"no other version for this encoder can be loaded; calibrate anew: {anew}"


def calibrations(root: Path, artifact: EncoderArtifact) -> Iterator[Finding]:
    """Checks that the champions for this encoder load, as the server loads them."""
    domains = DomainStore(opened(root))
    source = StoredCalibrations(domains)
    source.calibrators[artifact.digest] = OnnxCalibrator(artifact.calibrator, CPU)
    remedy = f"isosim calibrate FILE --domain default --encoder {artifact.id}"
    answering = 0
    for name in sorted({DEFAULT, *domains.names()}):
        try:
            record = domains.read(name)
            champion = record.served(artifact.digest).champion
            if champion is not None:
                source.load(name, record.version(name, champion))
        except (IsosimError, OSError) as error:
            yield fault("domain", str(error), remedy_for(domains, name, artifact))
            continue
        answering += champion is not None
        if name == DEFAULT and champion is None:
            yield warning("default", f"no default calibration for {artifact.id}: percentiles are null", remedy)
        elif name == DEFAULT:
            yield ok("default", f"default@{champion}")
    yield ok("domains", f"{answering} with a champion for this encoder")
