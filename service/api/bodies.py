"""Base classes of bodies, bodies of errors, and their OpenAPI entries."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from pydantic_core import PydanticCustomError

DomainField = Annotated[str, Field(description="name, name@3, name@champion or name@previous")]


TargetFacts = dict[Literal["fmr", "precision", "false_hit_rate", "gallery"], float | int]


# One error is enough: pydantic would otherwise build one for each of a million wrong entries.
Sentences = Annotated[list[str], FailFast()]


SentencePairs = Annotated[list[tuple[str, str]], FailFast()]


def entries(holds: Callable[[Any], bool], name: str) -> BeforeValidator:
    """The same for a list in a union, where FailFast cannot stand."""

    def check(value: Any) -> Any:
        if isinstance(value, list):
            wrong = next((index for index, entry in enumerate(value) if not holds(entry)), None)
            if wrong is not None:
                raise PydanticCustomError("entry_type", f"Input should be {name}", {"index": wrong})
        return value

    return BeforeValidator(check)


all_numbers = entries(lambda entry: type(entry) in (int, float), "a valid number")
all_texts = entries(lambda entry: isinstance(entry, str), "a valid string")


def example(*bodies: dict[str, Any]) -> ConfigDict:
    """Shown in the documentation; merged into the configuration of the base class."""
    return ConfigDict(json_schema_extra={"examples": list(bodies)})


class Own(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)  # "yes" is no boolean, "1" no number


class Compatible(BaseModel):
    """A body other services defined: unknown fields are kept, to be named in `x-isosim-ignored`."""

    model_config = ConfigDict(extra="allow", strict=True)

    def ignored(self) -> list[str]:
        names = list(self.model_extra or {})
        for name in type(self).model_fields:
            value = getattr(self, name)
            parts = value[:1] if isinstance(value, list) else [value]  # the first stands for its like
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
    """`openapi_extra` of a route that reads its body itself: JSON of one of READ_BY_ROUTES, or other media types."""
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}
    content |= {kind: {"schema": schema} for kind, schema in (others or {}).items()}
    return {"requestBody": {"required": True, "content": content}}
