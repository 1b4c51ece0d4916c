"""Putting exported encoders and shipped default calibrations into a model store."""

import shutil
from collections.abc import Callable
from pathlib import Path

import onnx

from service.adapters import probe
from service.adapters.artifacts import read_json
from service.adapters.domain_store import REPORT, DomainStore, read_version
from service.adapters.encoder_store import CALIBRATOR, ENCODER, JOINED, TOKENIZER, EncoderArtifact, EncoderStore
from service.core.encoders import EncoderSpec
from service.core.registry import DEFAULT
from service.modelling.checkpoints import Checkpoint
from service.modelling.encoder import load
from service.modelling.export import OPSET, check_parity, cut, export_joined

SHIPPED = Path(__file__).parent / "shipped"  # default calibrations by encoder digest; numbers only

Say = Callable[[str], None]


def export(store: Path, artifact_id: str, checkpoint: Checkpoint, spec: EncoderSpec, say: Say) -> EncoderArtifact:
    """Exports an encoder unless it is there, checks it against torch, and gives it its default calibration.

    Raises:
        InvalidInput: this checkpoint cannot be exported. ArithmeticError: torch and ONNX disagree.
    """
    encoders = EncoderStore(store)
    if encoders.has(artifact_id, spec.digest):
        say(f"encoder {artifact_id} ({spec.digest[:12]}) is there already")
        artifact = encoders.find(f"{artifact_id}@{spec.digest}")
    else:

        def write(folder: Path) -> dict[str, object]:
            say("loading the checkpoint")
            encoder = load(checkpoint, spec)
            say("tracing and exporting (half a minute)")
            joined = export_joined(encoder, spec.dim)
            onnx.save(joined, folder / JOINED)
            for name, model in zip((ENCODER, CALIBRATOR), cut(joined), strict=True):
                onnx.save(model, folder / name)
            shutil.copyfile(checkpoint.folder / "tokenizer.json", folder / TOKENIZER)
            say("comparing with torch at other shapes")
            worst = check_parity(encoder, folder / JOINED, spec.dim)
            return {"parity": worst, "opset": OPSET, "probe": probe.take(folder, spec)}

        artifact = encoders.add(artifact_id, spec, write)
        say(f"encoder {artifact_id} is in {artifact.folder}")
    install_default(store, artifact, say)
    return artifact


def install_default(store: Path, artifact: EncoderArtifact, say: Say) -> None:
    """The shipped `default` calibration of this encoder, if there is one and the domain has none yet."""
    domains = DomainStore(store)
    aliases = domains.aliases(DEFAULT, artifact.digest)
    folder = SHIPPED / artifact.digest
    if aliases.champion is not None:
        return
    if not folder.is_dir():
        say(
            "no default calibration is shipped for this encoder; "
            "percentiles come after: isosim calibrate FILE --domain default"
        )
        return
    shipped = read_version(folder)
    facts = {key: shipped.manifest[key] for key in ("method", "encoder", "sentences", "seed")}
    report = read_json(folder / REPORT)
    version = domains.publish(DEFAULT, facts, report, shipped.weights, shipped.model)
    domains.promote(DEFAULT, artifact.digest, version, expected=aliases)
    say(f"default calibration installed as default@{version}")
