"""Base classes of request bodies, the bodies of errors, and OpenAPI entries for bodies."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from pydantic_core import PydanticCustomError

DomainField = Annotated[str, Field(description="name, name@3, name@champion or name@previous")]


TargetFacts = dict[Literal["fmr", "precision", "false_hit_rate", "gallery"], float | int]


# FailFast stops at the first wrong entry; without it, pydantic builds an error for each of up to a million entries.
Sentences = Annotated[list[str], FailFast()]


SentencePairs = Annotated[list[tuple[str, str]], FailFast()]


# Maximum number of entries in a list of texts, numbers or token ids, and of lists, objects and names in a JSON body.
# Reading that many keeps the event loop about 30 ms; reading as many as fit into 2 MB kept it up to 0.9 s
# (loadtest/hostile.py).
MOST_ENTRIES = 65_536


def entries(holds: Callable[[Any], bool], name: str) -> BeforeValidator:
    """Validator that reports the first entry of a list for which `holds` is false, and no further entries. It counts
    the entries first.

    Pydantic's FailFast does the same, but cannot be applied to a union such as `str | list[str]`.
    """

    def check(value: Any) -> Any:
        if isinstance(value, list):
            if len(value) > MOST_ENTRIES:
                context = {"max_length": MOST_ENTRIES, "actual_length": len(value)}
                raise PydanticCustomError("too_long", "too many entries", context)
            wrong = next((index for index, entry in enumerate(value) if not holds(entry)), None)
            if wrong is not None:
                raise PydanticCustomError(
                    "entry_type", "wrong entry", {"index": wrong, "wanted": name, "entry": value[wrong]}
                )
        return value

    return BeforeValidator(check)


all_numbers = entries(lambda entry: type(entry) in (int, float), "a number")
all_texts = entries(lambda entry: isinstance(entry, str), "a text")


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


class ErrorBody(BaseModel):
    error: str
    error_type: str
    request_id: str


class OpenAIError(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(BaseModel):
    error: OpenAIError


REF = "#/components/schemas/{model}"


def body_of(model: type[BaseModel], others: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """`openapi_extra` of a route that parses its body itself. `model` is the schema of a JSON body; `others` maps other
    media types to their schemas. `model` must also be in READ_BY_ROUTES of `server.documentation`, from where the
    documentation takes the schemas of such bodies."""
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}
    content |= {kind: {"schema": schema} for kind, schema in (others or {}).items()}
    return {"requestBody": {"required": True, "content": content}}
