"""Open Inference Protocol V2 (KServe, Triton) over HTTP: vectors of texts, scores of pairs."""

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.responses import Response

from isosim import __version__
from isosim.api.bodies import body_of
from isosim.api.compatible import models, tensors
from isosim.api.compatible.schemas import ModelPath
from isosim.api.operations import check_alive, check_ready
from isosim.api.policy import PROBE, head_of, needs
from isosim.api.requests import TraceDep, check_encoding, documented, name_ignored
from isosim.api.scoring.pipeline import embed, listed, scores, vectors
from isosim.api.state import Service, ServiceDep
from isosim.errors import InvalidInput

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])

READ = [needs("read", timed=True)]
VersionPath = Annotated[str, Path(description="version of the domain", examples=["1"])]
MODEL_STATUSES = (404, 409)
INFER: dict[str, Any] = {
    "responses": {
        200: {"content": {"application/json": {}, "application/octet-stream": {}}},
        **documented(400, 404, 409, 413, 415, 422, 424, 429),
    },
    "openapi_extra": body_of(
        tensors.InferRequest, {"application/octet-stream": {"type": "string", "format": "binary"}}
    ),
    "dependencies": [
        needs("read", texts=0, body="json", timed=True)
    ],  # 0, because `pipeline.embed` charges the texts to the key's limits
    "response_class": Response,
}


async def named(model: ModelPath, service: ServiceDep, trace: TraceDep) -> models.Model:
    return await models.resolve(service, trace, model)


async def versioned(model: ModelPath, version: VersionPath, service: ServiceDep, trace: TraceDep) -> models.Model:
    return await models.resolve(service, trace, model, version)


ModelDep = Annotated[models.Model, Depends(named)]
VersionDep = Annotated[models.Model, Depends(versioned)]
HeaderLength = Annotated[str | None, Header(alias="inference-header-content-length")]


@router.get("", dependencies=READ, responses=documented())
async def server() -> dict[str, Any]:
    """The server's name, release and protocol extensions."""
    return {"name": "isosim", "version": __version__, "extensions": ["binary_tensor_data"]}


@router.get("/health/live", dependencies=[PROBE], responses={503: documented()[503]})
async def live(service: ServiceDep) -> dict[str, bool]:
    """Succeeds while the process and its encoder thread are alive."""
    check_alive(service)
    return {"live": True}


@router.get("/health/ready", dependencies=[PROBE], responses={503: documented()[503]})
async def ready(service: ServiceDep) -> dict[str, bool]:
    """Succeeds if all models can answer."""
    check_ready(service)
    return {"ready": True}


@router.get("/models/{model:path}/versions/{version}/ready", dependencies=READ, responses=documented(*MODEL_STATUSES))
async def version_ready(model: VersionDep, service: ServiceDep) -> dict[str, Any]:
    """Succeeds if the version exists and can answer."""
    check_ready(service)
    return {"name": model.name, "version": str(model.resolution.calibration.version), "ready": True}


@router.get("/models/{model:path}/ready", dependencies=READ, responses=documented(*MODEL_STATUSES))
async def model_ready(model: ModelDep, service: ServiceDep) -> dict[str, Any]:
    """Succeeds if the model exists and can answer."""
    return await version_ready(model, service)


@router.post("/models/{model:path}/versions/{version}/infer", **INFER)
async def infer_version(
    request: Request, model: VersionDep, service: ServiceDep, trace: TraceDep, header_length: HeaderLength = None
) -> Response:
    """Embeds or scores a tensor of texts with a version of a domain."""
    check_encoding(head_of(request.headers.raw))
    settings = service.settings
    # In a thread: a body of 2 MB may hold half a million elements, and parsing it would block the event loop.
    content = await request.body()
    async with service.parsing_json:
        asked, texts = await service.scoring(tensors.read, content, header_length, settings.max_texts)
    for name, entries in texts.items():
        listed(entries, name[: tensors.SHOWN], service, settings.max_texts if name == "text" else settings.max_pairs)
    name_ignored(trace, asked)
    outputs = await compute(model, texts, service, trace)
    head: dict[str, Any] = {"model_name": model.name, "model_version": str(model.resolution.calibration.version)}
    if asked.id is not None:
        head["id"] = asked.id
    content, headers = await service.scoring(tensors.write, head, asked, outputs)
    return Response(content, headers=headers)


@router.post("/models/{model:path}/infer", **INFER)
async def infer(
    request: Request, model: ModelDep, service: ServiceDep, trace: TraceDep, header_length: HeaderLength = None
) -> Response:
    """Embeds or scores a tensor of texts."""
    return await infer_version(request, model, service, trace, header_length)


async def compute(
    model: models.Model, texts: dict[str, list[str]], service: Service, trace: TraceDep
) -> dict[str, tuple[tensors.Datatype, npt.NDArray[np.floating]]]:
    """Computes the output tensors: name -> (datatype, values). The input `text` is embedded; the inputs `text_1` and
    `text_2` are scored, pair by pair.

    Raises:
        InvalidInput: the inputs have other names, or `text_1` and `text_2` differ in length.
    """
    if texts.keys() == {"text"}:
        embeddings = await embed(service, trace, model.resolution, texts["text"], scored=False)
        return {"embedding": ("FP32", await vectors(service, trace, model.resolution, model.space, embeddings))}
    if texts.keys() != {"text_1", "text_2"}:
        raise InvalidInput(
            f"inputs {', '.join(texts)[: tensors.SHOWN] or 'none'}: send one input named text, or two named "
            "text_1 and text_2"
        )
    left, right = texts["text_1"], texts["text_2"]
    if len(left) != len(right):
        raise InvalidInput(f"text_1 has {len(left)} texts, text_2 {len(right)}; a pair needs one of each")
    embeddings = await embed(service, trace, model.resolution, [*left, *right])
    half = len(left)
    result = await scores(service, trace, model.resolution, embeddings, slice(0, half), slice(half, None))
    outputs: dict[str, tuple[tensors.Datatype, npt.NDArray[np.floating]]] = {
        "similarity": ("FP32", result.cosine if model.space == "raw" else result.similarity),
        "cosine": ("FP32", result.cosine),
    }
    if result.percentile is not None and model.space == "calibrated":
        outputs["percentile"] = ("FP64", result.percentile)  # float32 cannot tell 1 - 1e-8 from 1
    return outputs


@router.get("/models/{model:path}/versions/{version}", dependencies=READ, responses=documented(*MODEL_STATUSES))
async def version_metadata(model: VersionDep, service: ServiceDep) -> dict[str, Any]:
    """Input and output tensors of a version."""
    dim = model.resolution.encoder.artifact.spec.dim
    optional = {"parameters": {"optional": True}}
    outputs: list[dict[str, Any]] = [
        {"name": "embedding", "datatype": "FP32", "shape": [-1, dim]},
        {"name": "similarity", "datatype": "FP32", "shape": [-1]},
        {"name": "cosine", "datatype": "FP32", "shape": [-1]},
    ]
    if model.space == "calibrated" and model.resolution.calibration.model.reference is not None:
        outputs.append({"name": "percentile", "datatype": "FP64", "shape": [-1]})
    return {
        "name": model.name,
        "versions": [str(model.resolution.calibration.version)],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": n, "datatype": "BYTES", "shape": [-1], **optional} for n in ("text", "text_1", "text_2")],
        "outputs": outputs,
    }


@router.get("/models/{model:path}", dependencies=READ, responses=documented(*MODEL_STATUSES))
async def metadata(model: ModelDep, service: ServiceDep) -> dict[str, Any]:
    """Input and output tensors of a model. `text` gives `embedding`; `text_1` and `text_2` give scores of pairs."""
    return await version_metadata(model, service)
