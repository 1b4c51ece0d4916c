"""Open Inference Protocol V2 (KServe, Triton) over HTTP: vectors of texts, scores of pairs."""

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.responses import Response

from isosim import __version__
from isosim.api.bodies import body_of
from isosim.api.compatible import models, tensors
from isosim.api.compatible.schemas import InferResponse, ModelMetadata, ModelPath
from isosim.api.operations import check_alive, check_ready
from isosim.api.policy import PROBE, needs
from isosim.api.requests import TraceDep, name_ignored
from isosim.api.scoring.request import MAX_TEXTS, ScoringRequest, listed
from isosim.api.state import ServiceDep
from isosim.errors import InvalidInput

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])

READ = [needs("read", timed=True)]
# No text is charged here: `ScoringRequest.embed` charges them to the key's limits.
SCORES = needs("read", texts=0, body="json", timed=True)
METADATA: dict[str, Any] = {
    "response_model": ModelMetadata,
    "response_model_exclude_none": True,
}
TRITON = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32", "FP64": "TYPE_FP64"}  # datatypes in a model configuration
BINARY = {"type": "string", "format": "binary"}
INFER: dict[str, Any] = {
    "responses": {
        200: {  # JSON first: generators make their methods for the first content type
            "model": InferResponse,
            "content": {"application/json": {}, "application/octet-stream": {"schema": BINARY}},
        },
    },
    "openapi_extra": body_of(tensors.InferRequest, {"application/octet-stream": BINARY}),
    "response_class": Response,
}


async def version_in_path(version: Annotated[str, Path(description="version of the domain", examples=["1"])]) -> None:
    """Documents the version, which `named` reads, because FastAPI knows no part of a path that may be missing."""


async def named(request: Request, model: ModelPath, service: ServiceDep, trace: TraceDep) -> ScoringRequest:
    return await models.begin(service, trace, model, request.path_params.get("version"))


VERSION = Depends(version_in_path)
ModelDep = Annotated[ScoringRequest, Depends(named)]
HeaderLength = Annotated[str | None, Header(alias="inference-header-content-length")]


@router.get("", dependencies=READ)
async def server_metadata() -> dict[str, Any]:
    """The server's name, release and protocol extensions."""
    return {"name": "isosim", "version": __version__, "extensions": ["binary_tensor_data"]}


@router.head("/health/live", dependencies=[PROBE], include_in_schema=False)
@router.get("/health/live", dependencies=[PROBE])
async def server_live(service: ServiceDep) -> dict[str, bool]:
    """Succeeds while the process and its encoder thread are alive."""
    check_alive(service)
    return {"live": True}


@router.head("/health/ready", dependencies=[PROBE], include_in_schema=False)
@router.get("/health/ready", dependencies=[PROBE])
async def server_ready(service: ServiceDep) -> dict[str, bool]:
    """Succeeds if all models can answer."""
    check_ready(service)
    return {"ready": True}


# Below, the decorator next to a function adds its route first: `{model:path}` would match `…/versions/1` too.


@router.get("/models/{model:path}/ready", dependencies=READ)
@router.get(
    "/models/{model:path}/versions/{version}/ready", operation_id="model_version_ready", dependencies=[*READ, VERSION]
)
async def model_ready(model: ModelPath, asked: ModelDep, service: ServiceDep) -> dict[str, str | bool]:
    """Succeeds if the model exists and can answer."""
    check_ready(service)
    return {"name": model, "version": str(asked.calibration.version), "ready": True}


@router.post("/models/{model:path}/infer", dependencies=[SCORES], **INFER)
@router.post(
    "/models/{model:path}/versions/{version}/infer",
    operation_id="model_version_infer",
    dependencies=[SCORES, VERSION],
    **INFER,
)
async def model_infer(
    request: Request,
    model: ModelPath,
    asked: ModelDep,
    service: ServiceDep,
    trace: TraceDep,
    header_length: HeaderLength = None,
) -> Response:
    """Embeds or scores a tensor of texts."""
    settings = service.settings
    # In a thread: a body of 2 MB may hold half a million elements, and parsing it would block the event loop.
    content = await request.body()
    body, texts = await service.large_json(tensors.read, content, header_length, MAX_TEXTS)
    for name, entries in texts.items():
        listed(entries, name[: tensors.SHOWN], service, MAX_TEXTS if name == "text" else settings.max_pairs)
    name_ignored(trace, body)
    outputs = await compute(asked, texts)
    head: dict[str, Any] = {"model_name": model, "model_version": str(asked.calibration.version)}
    if body.id is not None:
        head["id"] = body.id
    content, headers = await service.large_json(tensors.write, head, body, outputs)
    return Response(content, headers=headers)


async def compute(
    asked: ScoringRequest, texts: dict[str, list[str]]
) -> dict[str, tuple[tensors.Datatype, npt.NDArray[np.floating]]]:
    """Computes the output tensors: name -> (datatype, values). The input `text` is embedded; the inputs `text_1` and
    `text_2` are scored, pair by pair.

    Raises:
        InvalidInput: the inputs have other names, or `text_1` and `text_2` differ in length.
    """
    if texts.keys() == {"text"}:
        await asked.embed(texts["text"], scored=False)
        return {"embedding": ("FP32", await asked.vectors())}
    if texts.keys() != {"text_1", "text_2"}:
        raise InvalidInput(
            f"inputs {', '.join(texts)[: tensors.SHOWN] or 'none'}: send one input named text, or two named "
            "text_1 and text_2"
        )
    left, right = texts["text_1"], texts["text_2"]
    if len(left) != len(right):
        raise InvalidInput(f"text_1 has {len(left)} texts, text_2 {len(right)}; a pair needs one of each")
    await asked.embed([*left, *right])
    half = len(left)
    result = await asked.score(slice(0, half), slice(half, None))
    outputs: dict[str, tuple[tensors.Datatype, npt.NDArray[np.floating]]] = {
        "similarity": ("FP32", result.cosine if asked.raw else result.similarity),
        "cosine": ("FP32", result.cosine),
    }
    if result.percentile is not None and not asked.raw:
        outputs["percentile"] = ("FP64", result.percentile)  # float32 cannot tell 1 - 1e-8 from 1
    return outputs


@router.get("/models/{model:path}/config", dependencies=READ)
@router.get(
    "/models/{model:path}/versions/{version}/config", operation_id="model_version_config", dependencies=[*READ, VERSION]
)
async def model_config(model: ModelPath, asked: ModelDep) -> dict[str, Any]:
    """The metadata in the form of Triton's model configuration, which Triton's clients ask for."""
    metadata = await model_metadata(model, asked)
    sides = {
        side: [
            {"name": one["name"], "data_type": TRITON[one["datatype"]], "dims": one["shape"]} for one in metadata[key]
        ]
        for side, key in (("input", "inputs"), ("output", "outputs"))
    }
    return {"name": model, "platform": metadata["platform"], "max_batch_size": 0, **sides}


@router.get("/models/{model:path}", dependencies=READ, **METADATA)
@router.get(
    "/models/{model:path}/versions/{version}",
    operation_id="model_version_metadata",
    dependencies=[*READ, VERSION],
    **METADATA,
)
async def model_metadata(model: ModelPath, asked: ModelDep) -> dict[str, Any]:
    """Input and output tensors of a model. `text` gives `embedding`; `text_1` and `text_2` give scores of pairs."""
    dim = asked.encoder.artifact.spec.dim
    optional = {"parameters": {"optional": True}}
    outputs: list[dict[str, Any]] = [
        {"name": "embedding", "datatype": "FP32", "shape": [-1, dim]},
        {"name": "similarity", "datatype": "FP32", "shape": [-1]},
        {"name": "cosine", "datatype": "FP32", "shape": [-1]},
    ]
    if not asked.raw and asked.calibration.model.reference is not None:
        outputs.append({"name": "percentile", "datatype": "FP64", "shape": [-1]})
    return {
        "name": model,
        "versions": [str(asked.calibration.version)],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": n, "datatype": "BYTES", "shape": [-1], **optional} for n in ("text", "text_1", "text_2")],
        "outputs": outputs,
    }
