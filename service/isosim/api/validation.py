"""Turns pydantic's validation errors into messages that say what was sent and what is wanted."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.routing import BaseRoute

from isosim.api.bodies import MOST_ENTRIES
from isosim.api.parameters import MOST_UNKNOWN, bodies, own_fields, too_many_unknown, unknown
from isosim.errors import InvalidInput, IsosimError, TokenizerFailure
from isosim.scoring.calibration import DOMAIN_NAME, name_fault
from isosim.wording import SHOWN, nearest, place

BODY_TAGS = {"pairs", "tei", "vectors"}  # pydantic's tags for a route's alternative bodies; not field names
FIELD_TAGS = {"str", "list[str]"}  # tags for alternative forms of one field
NAMED = 3  # maximum number of further wrong fields that a message names

Body = TypeVar("Body")
Detail = Mapping[str, Any]  # one entry of pydantic's `errors()`

WANTED = {  # what a field must hold, for fields whose type alone says too little
    "pairs": 'a list of pairs of texts, [["a", "b"], …]',
    "vectors": "a list of pairs of vectors, [[[0.6, 0.8], [0.8, 0.6]], …]",
    "labels": 'a list of labelled pairs, [["a", "b", 1], …]',
    "texts": 'a list of texts, ["one", "two", …]',
    "sentences": 'a list of texts, ["one", "two", …]',
    "documents": 'a list of texts, ["one", "two", …], or of objects with a text',
    "cosines": "a list of numbers, [0.31, 0.87, …]",
    "distances": "a list of numbers, [0.31, 0.87, …]",
    "inputs": 'a text, or a list of texts, ["one", "two", …]',
    "input": 'a text, or a list of texts, ["one", "two", …]',
    "text_1": 'a text, or a list of texts, ["one", "two", …]',
    "text_2": 'a text, or a list of texts, ["one", "two", …]',
    "ids": "a list of token ids, [101, 2158, …]",
    "shape": "a list of whole numbers, [2]",
    "domain": 'the name of a domain, such as "default"',
    "version": "the number of a version, such as 2",
    "query": "a text",
    "source_sentence": "a text",
    "threshold": 'the name of a saved threshold, such as "duplicates"',
}
SHARES = {"fmr", "precision", "false_hit_rate"}  # parameters that users sometimes give in per cent
ENTRY = {  # the form of one entry, by the name of the field that holds the list
    "pairs": 'a pair is two texts, ["a", "b"]',
    "vectors": "a pair is two vectors, [[0.6, 0.8], [0.8, 0.6]]",
    "labels": 'a labelled pair is ["a", "b", 1]: two texts, a label (0, 1 or a grade), and a weight if any',
}
# Name of a list field -> what each entry of the list consists of (singular, plural). For example, an entry of `pairs`
# consists of texts, so a message says "pairs[0] has 3 texts".
PARTS = {
    "pairs": ("text", "texts"),
    "vectors": ("vector", "vectors"),
    "labels": ("entry", "entries"),
}
LABEL_PARTS = ("a", "b", "label", "weight")  # fields of a labelled pair, in order
OBJECTS = {"inputs": '{"source_sentence": "a", "sentences": ["b", "c"]}', "parameters": '{"domain": "default"}'}

# For each of pydantic's error types, the kind of value that is wanted.
TYPES = {
    "string_type": "a string",
    "string_unicode": "Unicode text",
    "list_type": "a list",
    "tuple_type": "a list",
    "named_tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "bool_type": "true or false, without quotation marks",
    "bool_parsing": "true or false",
    "int_type": "a whole number, without quotation marks",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number that is not so large",
    "int_from_float": "a whole number",
    "float_type": "a number, without quotation marks",
    "float_parsing": "a number",
    "finite_number": "a finite number",
}
BOUNDS = {
    "greater_than_equal": ("ge", "{} or more"),
    "greater_than": ("gt", "more than {}"),
    "less_than_equal": ("le", "{} or less"),
    "less_than": ("lt", "less than {}"),
}
# With these error types, the wrong value may be a text; messages do not quote texts.
TEXTS = {"string_type", "list_type", "tuple_type", "named_tuple_type", "model_type", "entry_type"}
ENCODER_PATTERN = "^(answering|next|[0-9a-f]{64})$"
PATTERNS: dict[str, Callable[[str], str]] = {
    f"^{DOMAIN_NAME}$": name_fault,
    ENCODER_PATTERN: lambda given: (
        f"encoder is {quoted(given)}; it must be `answering`, `next`, or an encoder's digest (64 hexadecimal digits)"
    ),
}


# A part of a JSON body up to the start of a list, of an object or of a named value; skips such characters in texts.
PART = re.compile(rb'(?:[^\[{:"]++|"(?:[^"\\]++|\\.)*+"?)*+[\[{:]?', re.DOTALL)


def parse_json(adapter: TypeAdapter[Body], content: bytes) -> Body:
    """Parses and validates a JSON body. All routes with large JSON bodies parse them here.

    The work is bounded by the number of bytes: a body has few lists, objects and names, and pydantic's errors are only
    looked at if they are few.

    Raises:
        InvalidInput: the body has too many lists, objects and names, or too many wrong fields.
        RequestValidationError: see `describe`.
    """
    if len(content) > MOST_ENTRIES:
        check_parts(content)
    try:
        return adapter.validator.validate_json(content)  # type: ignore[no-any-return]
    except ValidationError as error:
        if error.error_count() > MOST_UNKNOWN:
            raise too_many_unknown(error.error_count(), "or wrong fields") from None
        details = error.errors(include_url=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in details]) from None


def check_parts(content: bytes) -> None:
    """Raises InvalidInput if a JSON body has more than MOST_ENTRIES lists, objects and names.

    Texts may hold the same characters, so texts are skipped (25 ms per MB at most) if there are many of them.
    """
    if sum(map(content.count, (b"[", b"{", b":"))) <= MOST_ENTRIES:
        return
    parts = sum(1 for part in itertools.islice(PART.finditer(content), MOST_ENTRIES + 1) if part[0][-1:] in b"[{:")
    if parts > MOST_ENTRIES:
        raise InvalidInput(
            f"the body has more than {MOST_ENTRIES:,} lists, objects and names; send fewer entries at a time"
        )


def describe(error: RequestValidationError, route: BaseRoute | None) -> IsosimError:
    """Converts pydantic's error to one of ours. The message describes one wrong field, then names the others.

    If the body has an unknown field and lacks another, the message describes the unknown field: it may be the missing
    field with a misspelt name.
    """
    every = error.errors()
    if len(every) > MOST_UNKNOWN:
        return too_many_unknown(len(every), "or wrong fields")
    first = next((one for one in every if one["type"] == "extra_forbidden"), every[0])
    if first["type"] == "json_invalid":
        return no_json(str(first["ctx"]["error"]), route)
    path = path_of(first)
    field = ".".join(map(str, path)) or str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        refusal = unknown(field, "field", own_fields(route))
    else:
        same = [one for one in every if path_of(one) == path]
        refusal = InvalidInput(sentence(same, first["loc"][0], path, field, route))
        refusal.field = field
    others = also_wrong(every, path, own_fields(route))
    if not others:
        return refusal
    longer = type(refusal)(f"{refusal}; also missing or wrong: {others}")
    longer.field = refusal.field
    return longer


def path_of(detail: Detail) -> list[str | int]:
    """Path of the wrong value in body or query, without pydantic's tags for alternative forms."""
    where, *parts = detail["loc"]
    if where == "body" and parts and parts[0] in BODY_TAGS and (len(parts) > 1 or detail["type"] == "model_type"):
        parts.pop(0)
    if where == "body" and len(parts) > 1 and parts[1] in FIELD_TAGS:
        parts.pop(1)
    if len(parts) > 2 and parts[0] == "labels" and parts[2] in LABEL_PARTS:
        parts[2] = LABEL_PARTS.index(parts[2])  # a pair sent as an object: replaces the name by its position
    index = detail.get("ctx", {}).get("index")
    return [*parts, *([] if index is None else [index])]


def also_wrong(every: Sequence[Detail], path: Sequence[str | int], known: Sequence[str]) -> str:
    """Names of the other wrong fields. A missing field is left out if an unknown name that was sent resembles it."""
    tops = [(str(top[0]), one["type"]) for one in every if (top := path_of(one))]
    meant = {nearest(name, known) for name, kind in tops if kind == "extra_forbidden"}
    others = [name[:SHOWN] for name, kind in tops if not (kind == "missing" and name in meant)]
    rest = [name for name in dict.fromkeys(others) if not path or name != path[0]]
    return ", ".join(rest[:NAMED]) + (" and others" if len(rest) > NAMED else "")


def sentence(
    same: Sequence[Detail], where: str | int, path: Sequence[str | int], field: str, route: BaseRoute | None
) -> str:
    """Describes the fault at one path. If the value may have several forms, `same` holds an error for each of them."""
    first = same[0]
    kind, value, name = first["type"], first.get("input"), str(path[0]) if path else ""
    if not path:
        return whole_body(kind, value, route)
    entry = next((str(part) for part in reversed(path) if isinstance(part, str)), name)
    if kind in ("missing", "too_long") and len(path) > 1 and entry in ENTRY and isinstance(value, list):
        pair = path[: path.index(entry) + 2]
        count = f"{len(value)} {PARTS[entry][len(value) != 1]}"
        return f"{place('.'.join(map(str, pair)))} has {count}; {ENTRY[entry]}"
    named = place(field)
    if kind == "missing":
        return missing(named, entry, str(where), whole=len(path) == 1)
    if kind == "entry_type":
        context = first["ctx"]
        return f"{named} is {sent(kind, context.get('entry', value))}; it must be {context['wanted']}"
    if isinstance(path[-1], int) and entry in ENTRY and kind in TYPES and path[-2] == entry:
        return f"{named} is {sent(kind, value)}; {ENTRY[entry]}"
    return rule(same, named, entry)


def rule(same: Sequence[Detail], named: str, entry: str) -> str:
    """Describes the rule that a sent value breaks. For a value that was not sent, see the function `missing`."""
    first = same[0]
    kind, value, context = first["type"], first.get("input"), first.get("ctx", {})
    if kind in BOUNDS:
        bound, words = BOUNDS[kind]
        # A number from the query is still a string here; the message shows it without quotation marks.
        shown = value[:SHOWN] if isinstance(value, str) else sent(kind, value)
        wanted = "a number" if shown.strip().lower() == "nan" else words.format(number(context[bound]))
        share = "; it is a share: 1 % is 0.01" if entry in SHARES and kind.startswith("less") else ""
        return f"{named} is {shown}; it must be {wanted}{share}"
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        near = nearest(str(value), options)
        hint = f"; did you mean {near}?" if near is not None and isinstance(value, str) else ""
        return f"{named} is {sent(kind, value)}; it must be one of {', '.join(options)}{hint}"
    if kind == "string_pattern_mismatch" and context["pattern"] in PATTERNS:
        fault = PATTERNS[context["pattern"]](str(value))
        # Names of thresholds follow the rules for names of domains, so the message differs in this word only.
        return fault.replace("domain", "threshold") if entry == "name" else fault
    if kind in ("string_too_long", "too_long"):
        most = context["max_length"]
        unit = "characters" if kind == "string_too_long" else "entries"
        return f"{named} has {context.get('actual_length', len(value or ''))} {unit}; it may have {most} or fewer"
    kinds = list(dict.fromkeys(one["type"] for one in same if one["type"] in TYPES))
    if not kinds:
        return f"{named} is not valid; the page /docs says which values are"
    wanted = " or ".join(dict.fromkeys(TYPES[one] for one in kinds))
    if kinds[0] in ("model_type", "dict_type", "model_attributes_type"):
        wanted += f" such as {OBJECTS[entry]}" if entry in OBJECTS else ""
    elif (kinds[0] in TEXTS or len(kinds) > 1) and not named.endswith(")"):
        wanted = WANTED.get(entry, wanted)
    share = "; 1 % is 0.01" if entry in SHARES and kind == "float_parsing" else ""
    return f"{named} is {sent(kind, value)}; it must be {wanted}{share}"


def missing(named: str, entry: str, where: str, *, whole: bool) -> str:
    """Describes a missing value; `whole`: the field itself is missing, not a part of one of its entries."""
    if entry in ENTRY and not whole:
        return f"{named} is missing; {ENTRY[entry]}"
    if where == "query":
        return f"{named} is missing; give it in the query, ?{named}={'NAME' if entry == 'domain' else '…'}"
    return f"{named} is missing; send {WANTED.get(entry, f'a value for {named}')}"


def no_json(why: str, route: BaseRoute | None) -> IsosimError:
    """Error for a body that is not JSON."""
    if "hex escape" in why:
        return TokenizerFailure(f"a text holds half of a surrogate pair, which is not valid Unicode: {why}")
    if re.match(r"EOF while parsing a value at line 1 column 0|Expecting value", why):
        return InvalidInput(f"the body is empty or not JSON; send {example_of(route)}")
    if where := re.match(r"invalid unicode code point( at line \d+ column \d+)", why):
        return InvalidInput(f"the body is not UTF-8{where[1]}; JSON is sent in UTF-8")
    return InvalidInput(f"the body is not valid JSON: {why}; this route wants {example_of(route)}")


def whole_body(kind: str, value: object, route: BaseRoute | None) -> str:
    if kind == "missing":
        return f"the body is missing; send {example_of(route)}"
    return f"the body is {sent(kind, value)}; send {example_of(route)}"


def example_of(route: BaseRoute | None) -> str:
    """The documented example of the route's body, for a message."""
    example = json_example(route)
    return "a JSON object" if example is None else f"a JSON object such as {example}"


def json_example(route: BaseRoute | None) -> str | None:
    """The first documented example of the route's body; None if it has none."""
    for model in bodies(route):
        extra = model.model_config.get("json_schema_extra")
        if isinstance(extra, dict) and isinstance(examples := extra.get("examples"), list):
            return orjson.dumps(examples[0]).decode()
    return None


def sent(kind: str, value: object) -> str:
    """Describes the value that was sent. Texts are not quoted, because messages may be logged and texts must not."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, str | bytes):
        return "a string" if kind in TEXTS else quoted(value if isinstance(value, str) else value.decode("latin-1"))
    return "a list" if isinstance(value, list | tuple) else "an object"


def quoted(text: str) -> str:
    return '"' + (text if len(text) <= SHOWN else f"{text[:SHOWN]}…") + '"'


def number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    return f"{value:g}" if isinstance(value, float) else str(value)[:SHOWN]


def labelled_pair_fault(error: ValidationError) -> str:
    """Describes the fault in a labelled pair of an NDJSON line."""
    first = error.errors()[0]
    path: Iterable[Any] = first["loc"]
    name = next((LABEL_PARTS[part] for part in path if isinstance(part, int) and part < len(LABEL_PARTS)), "label")
    wanted = {"a": "a text", "b": "a text", "label": "a number: 0, 1 or a grade", "weight": "a number above 0"}[name]
    shown = "missing" if first["input"] is None else sent(first["type"], first["input"])
    return f"{name} is {shown}; in a labelled pair it must be {wanted}"
