"""One standalone graph with a domain's weights baked in, for any ONNX runtime."""

from pathlib import Path

import onnx

from service.adapters.artifacts import verified
from service.adapters.domain_store import StoredVersion
from service.adapters.encoder_store import JOINED, EncoderArtifact
from service.modelling.export import with_weights
from service.modelling.linear import identity
from service.modelling.methods import weights_of


def bundle(encoder: EncoderArtifact, version: StoredVersion, output: Path) -> None:
    """Writes token ids → pooled, latent; where the vectors come from stands in the graph's metadata.

    Raises:
        CorruptArtifact: the joined graph does not match its manifest.
    """
    verified(encoder.folder, JOINED)
    weights = version.weights if version.weights is not None else weights_of(identity(encoder.spec.dim))
    model = with_weights(onnx.load(encoder.joined), weights)
    facts = {
        "isosim.domain": version.manifest["domain"],
        "isosim.version": str(version.manifest["version"]),
        "isosim.method": version.manifest["method"],
        "isosim.encoder": encoder.digest,
        "isosim.max_length": str(encoder.spec.max_length),
        "isosim.prompt": encoder.spec.prompt,
    }
    onnx.helper.set_model_props(model, facts)
    onnx.save(model, output)
