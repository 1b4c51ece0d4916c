"""Base classes of request bodies, the bodies of errors, and OpenAPI entries for bodies."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, Tag

from isosim.errors import Action

DomainField = Annotated[str, Field(description="name, name@3, name@champion or name@previous")]


TargetFacts = dict[Literal["fmr", "precision", "false_hit_rate", "gallery"], float | int]


# Maximum number of entries in a list of texts or numbers, and of lists and objects in a JSON body.
# Reading that many keeps the event loop about 30 ms; reading as many as fit into 2 MB kept it up to 0.9 s
# (loadtest/stall.py).
MOST_ENTRIES = 65_536
MOST = Field(max_length=MOST_ENTRIES)


class FirstFault(FailFast):
    """Stops at the first wrong entry; otherwise pydantic builds an error for each of up to a million entries."""

    __hash__ = object.__hash__  # the alternatives of a union must be hashable


FIRST_FAULT = FirstFault()
Sentences = Annotated[list[str], FIRST_FAULT]
SentencePairs = Annotated[list[Annotated[list[str], Field(min_length=2, max_length=2)]], FIRST_FAULT]
Texts = Annotated[list[str], FIRST_FAULT, MOST]
Numbers = Annotated[list[float], FIRST_FAULT, MOST]
# The tags name the alternatives in the places of errors; messages leave out names in parentheses.
TextOrTexts = Annotated[str, Tag("(text)")] | Annotated[Texts, Tag("(texts)")]


def whole(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is a whole number too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(whole)
Count = Annotated[int, Field(ge=1), WHOLE]  # 1, 2, …
Number = Annotated[int, Field(ge=0), WHOLE]  # 0, 1, …
Seed = Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE]


def example(*bodies: dict[str, Any]) -> ConfigDict:
    """Model configuration with examples for the documentation; pydantic adds it to the base class's configuration."""
    return ConfigDict(json_schema_extra={"examples": list(bodies)})


class Own(BaseModel):
    """A body that we define: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)  # strict: "yes" is not a boolean, "1" is not a number


class Compatible(BaseModel):
    """A body that another service's API defines: unknown fields are accepted, and listed in `x-isosim-ignored`."""

    model_config = ConfigDict(extra="allow", strict=True)

    def ignored(self) -> list[str]:
        names = list(self.model_extra or {})
        for name in type(self).model_fields:
            value = getattr(self, name)
            # In a list, only the first entry is checked, because all entries usually have the same fields.
            parts = value[:1] if isinstance(value, list) else [value]
            names += [f"{name}.{inner}" for part in parts if isinstance(part, Compatible) for inner in part.ignored()]
        return names


class RemedyBody(BaseModel):
    action: Action
    arguments: dict[str, str]
    text: str = Field(description="the action in words, for a caller of this API")


class ErrorBody(BaseModel):
    model_config = example(
        {
            "error": "no domain 'ticket'",
            "error_type": "NotFound",
            "request_id": "4f1c2a9b7d3e4c5f8a6b0d1e2f3a4b5c",
            "remedy": {"action": "list_domains", "arguments": {}, "text": "GET /domains lists the domains"},
        }
    )

    error: str
    error_type: str
    request_id: str
    remedy: RemedyBody | None = Field(default=None, description="what can be done, if anything")


class OpenAIError(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(BaseModel):
    error: OpenAIError


REF = "#/components/schemas/{model}"
PARSED_BY_ROUTES: list[type[BaseModel]] = []  # bodies whose schemas FastAPI does not know


def body_of(
    model: type[BaseModel], others: dict[str, dict[str, Any]] | None = None, query: type[BaseModel] | None = None
) -> dict[str, Any]:
    """`openapi_extra` of a route that parses its body itself. `model` is the schema of a JSON body; `others` maps other
    media types to their schemas; `query` has the query parameters that go with these."""
    PARSED_BY_ROUTES.append(model)
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}
    content |= {kind: {"schema": schema} for kind, schema in (others or {}).items()}
    fields = {} if query is None else query.model_json_schema()["properties"]
    parameters = [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in fields.items()]
    return {"requestBody": {"required": True, "content": content}, "parameters": parameters}
