"""Bodies and answers that other services defined: OpenAI, text-embeddings-inference, Cohere, Jina, vLLM."""

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, Tag
from pydantic_core import PydanticCustomError

from isosim.api.bodies import (
    FIRST_FAULT,
    MOST,
    WHOLE,
    Compatible,
    DomainField,
    Number,
    TextOrTexts,
    Texts,
    example,
)
from isosim.api.scoring.schemas import Dimensions, PromptName, TruncationDirection
from isosim.scoring.advice import MOST_GALLERY

MODEL_NAMES = "isosim, isosim/<domain>[@version], isosim/<domain>:raw"
ModelField = Annotated[str, Field(description=MODEL_NAMES)]
ModelPath = Annotated[str, Path(description=MODEL_NAMES, examples=["isosim/default"])]


def refuse_token_ids(value: Any) -> Any:
    """LangChain sends token ids of OpenAI's tokenizer unless it is told not to."""
    if isinstance(value, list) and value and type(value[0]) in (int, list):
        raise PydanticCustomError(
            "token_ids",
            "Input should be texts, not token ids, which mean something else to this encoder "
            "(LangChain: check_embedding_ctx_length=False)",
        )
    return value


class EmbeddingsRequest(Compatible):
    """The body of OpenAI's embeddings route."""

    model_config = example({"model": "isosim", "input": ["A man is playing a guitar."]})

    input: Annotated[TextOrTexts, BeforeValidator(refuse_token_ids)]
    model: ModelField = "isosim"
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = Field(
        default=None,
        description="number of leading dimensions to keep, then the vectors are normalized; fewer than the "
        "encoder's only for raw vectors",
    )
    user: str | None = None


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    estimated: bool = Field(
        default=False, description="true for remote encoders: tokens are estimated as 4 bytes of UTF-8 each"
    )


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str = Field(description="numbers, or base64 of little-endian float32")


class EmbeddingsResponse(BaseModel):
    model_config = example(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [-0.0408, 0.0829, -0.0878]}],
            "model": "isosim/tickets",
            "usage": {"prompt_tokens": 24, "total_tokens": 24},
        }
    )

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    max_model_len: int = Field(description="maximum number of tokens per text, including special tokens")
    created: int = Field(description="when the version was made, in seconds since 1970; 0 for the built-in version")
    owned_by: str = "isosim"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Document(Compatible):
    """A document sent as an object, which Cohere's and Jina's APIs allow."""

    text: str


Documents = Annotated[list[Annotated[str, Tag("(text)")] | Annotated[Document, Tag("(object)")]], FIRST_FAULT, MOST]


class RerankRequest(Compatible):
    """The body of text-embeddings-inference with `texts`, or that of Cohere, Jina and Voyage with `documents`."""

    model_config = example(
        {"query": "Who plays?", "texts": ["A man is playing a guitar.", "Shares fell."], "return_text": True}
    )

    query: str
    texts: Texts | None = None
    documents: Documents | None = None
    model: ModelField | None = None
    domain: DomainField | None = Field(default=None, description="domain that scores the texts, if no model is named")
    raw_scores: bool = Field(default=False, description="return similarities instead of percentiles")
    truncate: bool | None = None
    truncation_direction: TruncationDirection = "Right"
    return_text: bool = False
    return_documents: bool = False
    top_n: Number | None = Field(default=None, description="0: all, as in vLLM")
    top_k: Number | None = None
    gallery: Annotated[int, Field(ge=1, le=MOST_GALLERY), WHOLE] | None = Field(
        default=None,
        description="size of the collection that the texts were retrieved from; adds `false_hit_rate` to each result",
    )


FalseHitRate = Annotated[
    float | None,
    Field(
        description="only with `gallery`: share of queries for which a wrong text scores at least as high as this text"
    ),
]


class Rank(BaseModel):
    """An entry of text-embeddings-inference's answer; `text` is set only if the request asks for it."""

    index: int
    score: float
    text: str | None = None
    false_hit_rate: FalseHitRate = None


class RerankedText(BaseModel):
    text: str


class Reranked(BaseModel):
    index: int
    relevance_score: float
    document: RerankedText | None = None
    false_hit_rate: FalseHitRate = None


class RerankResponse(BaseModel):
    model_config = example(
        {
            "id": "12f99ee065399c07533e270a53552f55",
            "model": "isosim/tickets",
            "results": [{"index": 0, "relevance_score": 0.9879}, {"index": 1, "relevance_score": 0.409}],
            "usage": {"prompt_tokens": 24, "total_tokens": 24},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }
    )

    id: str
    model: str
    results: list[Reranked]
    usage: Usage
    meta: dict[str, dict[str, str | int]] = Field(description="the same in every answer: Cohere's clients expect it")


class EmbedTextsRequest(Compatible):
    """The body of Cohere's embeddings routes."""

    model_config = example({"model": "isosim", "texts": ["A man is playing a guitar."], "embedding_types": ["float"]})

    texts: Texts
    model: ModelField = "isosim"
    embedding_types: Annotated[list[Literal["float", "base64"]], Field(max_length=2)] | None = None
    truncate: Literal["NONE", "START", "END"] = Field(
        default="END", description="which end of a text that is too long is cut; NONE: it is refused"
    )
    output_dimension: Dimensions | None = None


class EmbeddingsByType(BaseModel):
    floats: list[list[float]] | None = Field(default=None, alias="float")
    base64: list[str] | None = None


class EmbedResponse(BaseModel):
    id: str
    texts: list[str]
    meta: dict[str, dict[str, str | int]]


class EmbedByTypeResponse(EmbedResponse):
    response_type: Literal["embeddings_by_type"]
    embeddings: EmbeddingsByType


class EmbedFloatsResponse(EmbedResponse):
    response_type: Literal["embeddings_floats"]
    embeddings: list[list[float]]


class ScoreRequest(Compatible):
    """vLLM's body: one text against one or many, or two lists of equal length, entry by entry."""

    model_config = example(
        {
            "model": "isosim",
            "text_1": "A man is playing a guitar.",
            "text_2": ["Someone plays an instrument.", "Shares fell in London."],
        }
    )

    text_1: TextOrTexts = Field(validation_alias=AliasChoices("text_1", "queries", "data_1"))
    text_2: TextOrTexts = Field(validation_alias=AliasChoices("text_2", "documents", "items", "data_2"))
    model: ModelField = "isosim"


class ScoreEntry(BaseModel):
    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreResponse(BaseModel):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ScoreEntry]
    usage: Usage


class TokenizeRequest(Compatible):
    """The body of text-embeddings-inference."""

    model_config = example({"inputs": "A man is playing a guitar."})

    inputs: TextOrTexts
    add_special_tokens: bool = True
    prompt_name: PromptName = None


class SimpleToken(BaseModel):
    id: int
    text: str
    special: bool
    start: int | None = Field(
        description="position in the text of the token's first character; null for a special token"
    )
    stop: int | None


class Pooling(BaseModel):
    pooling: str


class ModelType(BaseModel):
    embedding: Pooling


class Info(BaseModel):
    """The fields of text-embeddings-inference, and the version of isosim's HTTP contract."""

    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    contract: str
    sha: str | None
    docker_label: str | None


class TensorMetadata(BaseModel):
    """A tensor that a model takes or gives; -1 in `shape` stands for any size."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, bool] | None = None


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OutputTensor(BaseModel):
    name: str
    datatype: Literal["FP32", "FP64"]
    shape: list[int]
    data: list[float] | None = Field(default=None, description="numbers, row by row; missing from a binary answer")
    parameters: dict[str, int] | None = Field(
        default=None, description="of a binary answer: `binary_data_size`, the number of bytes after the JSON"
    )


class InferResponse(BaseModel):
    """The protocol's answer. A binary answer begins with this JSON, and the tensors' bytes follow."""

    model_config = example(
        {
            "model_name": "isosim/tickets",
            "model_version": "1",
            "outputs": [{"name": "similarity", "datatype": "FP32", "shape": [1], "data": [0.6817]}],
        }
    )

    model_name: str
    model_version: str
    id: str | None = Field(default=None, description="the request's `id`, if it has one")
    outputs: list[OutputTensor]
