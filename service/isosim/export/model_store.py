"""Adds exported encoders and the shipped default calibrations to a model store."""

from collections.abc import Callable
from pathlib import Path

import onnx

from isosim.domains.seeding import adopt_shipped
from isosim.domains.store import DomainStore, StoredVersion
from isosim.encoders import probe
from isosim.encoders.store import CALIBRATOR, ENCODER, TOKENIZER, EncoderArtifact, EncoderStore
from isosim.export.checkpoints import Checkpoint, licence_of
from isosim.export.encoder import Encoder
from isosim.export.graph import OPSET, check_parity, cut, export_joined, join, joined_graph, with_weights
from isosim.fitting.linear import identity
from isosim.fitting.methods import weights_of
from isosim.scoring.calibration import DEFAULT
from isosim.store.blobs import opened

SHIPPED = Path(__file__).parent / "shipped"  # default calibrations: one folder per encoder, named by its digest

Say = Callable[[str], None]


def export(store: Path, artifact_id: str, checkpoint: Checkpoint, encoder: Encoder, say: Say) -> EncoderArtifact:
    """Exports an encoder to the store, checks the exported graph against torch, and installs the default calibration.

    If the store already has the encoder, undamaged, only the calibration is installed.

    Raises:
        ArithmeticError: the outputs of torch and ONNX differ.
    """
    encoders, spec = EncoderStore.at(store), encoder.spec
    artifact = encoders.sound(artifact_id, spec.digest)
    if artifact is not None:
        say(f"the store already has encoder {artifact_id} ({spec.digest[:12]})")
    else:

        def write(folder: Path) -> dict[str, object]:
            say("tracing and exporting (half a minute)")
            parts = cut(export_joined(encoder))
            for name, model in zip((ENCODER, CALIBRATOR), parts, strict=True):
                onnx.save(model, folder / name)
            (folder / TOKENIZER).write_bytes(encoder.tokenizer)
            say("comparing the exported graph with torch at other input shapes")
            worst = check_parity(encoder, join(*parts))
            licence = checkpoint.licence or licence_of(checkpoint.folder)
            say(f"licence of the weights: {licence}")
            facts = {"licence": licence, "prompts": encoder.prompts}
            return {**facts, "parity": worst, "opset": OPSET, "probe": probe.take(folder, spec)}

        artifact = encoders.add(artifact_id, spec, write)
        say(f"encoder {artifact_id} written to {encoders.blobs.address} ({spec.digest[:12]})")
    install_default(store, artifact, say)
    return artifact


def install_default(store: Path, artifact: EncoderArtifact, say: Say) -> None:
    """Installs the encoder's shipped calibration in the domain `default`, if `default` has no champion yet."""
    domains = DomainStore(opened(store))
    folder = SHIPPED / artifact.digest
    if not folder.is_dir():
        if domains.read(DEFAULT).served(artifact.digest).champion is None:
            say(
                "no default calibration is shipped for this encoder; "
                "to get percentiles, run: isosim calibrate FILE --domain default"
            )
        return
    version = adopt_shipped(domains, folder)
    if version is not None:
        say(f"default calibration installed as default@{version}")


def bundle(encoder: EncoderArtifact, domain: str, stored: StoredVersion, output: Path) -> None:
    """Writes a standalone graph (token ids → pooled, latent), with domain, version and encoder in its metadata.

    Raises:
        CorruptArtifact: a graph does not match its manifest.
    """
    weights = stored.weights if stored.weights is not None else weights_of(identity(encoder.spec.dim))
    model = with_weights(joined_graph(encoder), weights)
    facts = {
        "isosim.domain": domain,
        "isosim.version": str(stored.version.number),
        "isosim.method": stored.version.method,
        "isosim.encoder": encoder.digest,
        "isosim.max_length": str(encoder.spec.max_length),
        "isosim.prompt": encoder.spec.prompt,
    }
    onnx.helper.set_model_props(model, facts)
    onnx.save(model, output)
