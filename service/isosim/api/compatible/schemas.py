"""Bodies and answers that other services defined: OpenAI, text-embeddings-inference, Cohere, Jina, vLLM."""

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, Field

from isosim.api.bodies import Compatible, DomainField, all_texts, entries, example
from isosim.api.scoring.schemas import PromptName, TruncationDirection
from isosim.scoring.advice import MOST_GALLERY

OneOrMore = Annotated[str | list[str], all_texts]
texts_and_no_ids = entries(
    lambda entry: isinstance(entry, str),
    "a text; token ids mean something else to this encoder than to OpenAI's tokenizer "
    "(LangChain: check_embedding_ctx_length=False)",
)


MODEL_NAMES = "isosim, isosim/<domain>[@version], isosim/<domain>:raw"
ModelField = Annotated[str, Field(description=MODEL_NAMES)]
ModelPath = Annotated[str, Path(description=MODEL_NAMES, examples=["isosim/default"])]


class EmbeddingsRequest(Compatible):
    """The body of OpenAI's embeddings route."""

    model_config = example({"model": "isosim", "input": ["A man is playing a guitar."]})

    input: Annotated[str | list[str], texts_and_no_ids]
    model: ModelField = "isosim"
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=65_536,
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


def is_document(entry: Any) -> bool:
    return isinstance(entry, str) or (isinstance(entry, dict) and isinstance(entry.get("text"), str))


Documents = Annotated[list[str | Document], entries(is_document, 'a text, or an object with a field "text"')]


class RerankRequest(Compatible):
    """The body of text-embeddings-inference with `texts`, or that of Cohere, Jina and Voyage with `documents`."""

    model_config = example(
        {"query": "Who plays?", "texts": ["A man is playing a guitar.", "Shares fell."], "return_text": True}
    )

    query: str
    texts: Annotated[list[str], all_texts] | None = None
    documents: Documents | None = None
    model: ModelField | None = None
    domain: DomainField | None = Field(default=None, description="domain that scores the texts, if no model is named")
    raw_scores: bool = Field(default=False, description="return similarities instead of percentiles")
    truncate: bool | None = None
    truncation_direction: TruncationDirection = "Right"
    return_text: bool = False
    return_documents: bool = False
    top_n: int | None = Field(default=None, ge=1)
    top_k: int | None = Field(default=None, ge=1)
    gallery: int | None = Field(
        default=None,
        ge=1,
        le=MOST_GALLERY,
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
    id: str
    model: str
    results: list[Reranked]
    usage: Usage


class ScoreRequest(Compatible):
    """vLLM's body: one text against one or many, or two lists of equal length, entry by entry."""

    model_config = example(
        {
            "model": "isosim",
            "text_1": "A man is playing a guitar.",
            "text_2": ["Someone plays an instrument.", "Shares fell in London."],
        }
    )

    text_1: OneOrMore
    text_2: OneOrMore
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

    inputs: OneOrMore
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
