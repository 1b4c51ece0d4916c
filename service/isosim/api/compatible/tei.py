"""text-embeddings-inference's routes for tokens, server information and health."""

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from isosim import CONTRACT, __version__
from isosim.api.compatible.schemas import (
    Info,
    ModelType,
    Pooling,
    SimpleToken,
    TokenizeRequest,
)
from isosim.api.operations import check_ready
from isosim.api.parameters import fault
from isosim.api.policy import OPEN, PROBE, needs
from isosim.api.requests import ScoringRoute, TraceDep, json_response, name_ignored
from isosim.api.scoring.request import MAX_TEXTS, listed, named_prompt
from isosim.api.state import Service, ServiceDep
from isosim.errors import InvalidInput

tokens = APIRouter(tags=["scoring"], route_class=ScoringRoute)
router = APIRouter(tags=["operations"])

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
MOST_CHARACTERS = 200_000  # maximum number of characters per request; each becomes up to 60 bytes of the answer


@tokens.post("/tokenize", response_model=list[list[SimpleToken]])
async def tokenize(body: TokenizeRequest, service: ServiceDep, trace: TraceDep) -> Response:
    """Tokens of each text, with character positions. Nothing is truncated.

    If `prompt_name` is sent, the prompt is put before each text, and positions count from the prompt's first character.
    """
    texts = listed(body.inputs, "inputs", service)
    prompt = named_prompt(body.prompt_name, service.encoder.artifact) or ""
    name_ignored(trace, body)
    if sum(map(len, texts)) > MOST_CHARACTERS:
        raise fault(InvalidInput, "inputs", f"has more than {MOST_CHARACTERS} characters; send fewer at a time")
    await service.limits.admit(trace.grant, len(texts))
    async with service.tokenizing:
        return await service.scoring(
            pieces_of, [prompt + text for text in texts], service, special=body.add_special_tokens
        )


def pieces_of(texts: list[str], service: Service, *, special: bool) -> Response:
    pieces_of_texts = service.encoder.tokenizer.pieces(texts, special=special)
    return json_response([[piece._asdict() for piece in pieces] for pieces in pieces_of_texts])


@router.get("/info", dependencies=[needs("read", timed=True)])
async def info(service: ServiceDep) -> Info:
    """The encoder that this server runs, and the server's limits."""
    first = service.encoder
    spec, plan = first.artifact.spec, first.embedder.batcher.plan
    return Info(
        model_id=first.artifact.id,
        model_sha=first.digest,
        model_dtype=DTYPES.get(spec.number_format, spec.precision),
        served_model_name="isosim",
        model_type=ModelType(embedding=Pooling(pooling=spec.pooling)),
        max_concurrent_requests=plan.max_queued_texts,
        max_input_length=spec.max_length,
        max_batch_tokens=plan.max_batch_tokens,
        max_batch_requests=plan.max_batch_texts,
        max_client_batch_size=MAX_TEXTS,
        auto_truncate=True,
        tokenization_workers=1,
        version=__version__,
        contract=CONTRACT,
        sha=None,
        docker_label=None,
    )


@router.head("/ping", dependencies=[PROBE], include_in_schema=False)
@router.head("/health", dependencies=[PROBE], include_in_schema=False)
@router.get("/ping", dependencies=[PROBE], operation_id="ping", response_class=Response)
@router.get("/health", dependencies=[PROBE], response_class=Response)
async def health(service: ServiceDep) -> Response:
    """Answers 200 with an empty body while the server is ready (as GET /readyz)."""
    check_ready(service)
    return Response()


@router.head("/", dependencies=[OPEN], include_in_schema=False)
@router.get("/", dependencies=[OPEN], response_class=Response, responses={307: {"description": "to /console"}})
async def root(request: Request, service: ServiceDep) -> Response:
    """Health, as in text-embeddings-inference; browsers are redirected to the console."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse("console")
    return await health(service)
