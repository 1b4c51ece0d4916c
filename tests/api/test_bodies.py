"""What a JSON body may cost before it is refused."""

import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from isosim.api.bodies import MOST_ENTRIES
from isosim.api.calibration.schemas import CalibrateRequest, LabelsRequest
from isosim.api.compatible.schemas import EmbeddingsRequest, EmbedTextsRequest, RerankRequest, ScoreRequest
from isosim.api.compatible.tensors import INFER
from isosim.api.scoring.schemas import EmbedRequest, PercentileRequest, SimilarityRequest
from isosim.api.validation import MOST_NAMES, MOST_TEXTS, MOST_UNKNOWN, MOST_VALUES, check_parts, parse_json
from isosim.errors import InvalidInput
from loadtest.bodies import FORMS, json_bodies
from tests.processes import Server

ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "/similarity": TypeAdapter(SimilarityRequest),
    "/percentile": TypeAdapter(PercentileRequest),
    "/embed": TypeAdapter(EmbedRequest),
    "/rerank": TypeAdapter(RerankRequest),
    "/score": TypeAdapter(ScoreRequest),
    "/v1/embeddings": TypeAdapter(EmbeddingsRequest),
    "/v1/embed": TypeAdapter(EmbedTextsRequest),
    "/v2/embed": TypeAdapter(EmbedTextsRequest),
    "/v2/models/isosim/infer": INFER,
    "/calibrate": TypeAdapter(CalibrateRequest),
    "/domains/default/labels": TypeAdapter(LabelsRequest),
}


@pytest.mark.parametrize("route", [form for form in FORMS if form.partition(" ")[0] in ADAPTERS])
def test_the_errors_of_a_hostile_body_are_few(route: str) -> None:
    """Bodies of 300 kB: what is described and compared with known names does not grow with them."""
    for name, body in json_bodies(route, 300_000):
        try:
            parse_json(ADAPTERS[route.partition(" ")[0]], body)
        except InvalidInput as error:
            assert len(str(error)) < 500, name


@pytest.mark.parametrize(
    ("part", "most", "what"),
    [
        (b"[]", MOST_ENTRIES - 1, "65,536 lists and objects"),
        (b"{}", MOST_ENTRIES - 1, "65,536 lists and objects"),
        (b'{"a" :1}', MOST_NAMES, "16,384 names"),
        (b'"\\\\\\"[" ', MOST_TEXTS, "131,072 texts"),
        (b"1 ", MOST_VALUES + 1, "262,144 values"),
    ],
)
def test_a_body_of_too_many_parts_is_refused(part: bytes, most: int, what: str) -> None:
    check_parts(b"[" + b",".join([part] * most) + b"]")
    with pytest.raises(InvalidInput, match=f"more than {what}; send"):
        check_parts(b"[" + b",".join([part] * (most + 1)) + b"]")


@given(st.lists(st.text(alphabet='[{:"\\ab,\u00e9', max_size=8), max_size=9), st.booleans())
@example(['[{:,\\"' * MOST_VALUES], False)
def test_texts_may_hold_any_number_of_what_is_counted(texts: list[str], spaced: bool) -> None:
    """At one list below the limit, whatever the texts beside the lists hold."""
    content = json.dumps(
        [texts, *[[]] * (MOST_ENTRIES - 2)], ensure_ascii=False, separators=(" , " if spaced else ",", ":")
    )
    check_parts(content.encode())
    with pytest.raises(InvalidInput, match="65,536 lists and objects"):
        check_parts(f"[{content}]".encode())


@pytest.mark.parametrize("path", ["/similarity", "/embed", "/v1/embeddings", "/v2/models/isosim/infer", "/calibrate"])
def test_more_than_16_unknown_names_are_refused_without_a_suggestion(tiny_server: Server, path: str) -> None:
    form = FORMS[path]
    valid = f'"{form.items}":[{form.entry}]'

    def ask(count: int) -> str:
        body = form.object(form.fields, valid, ",".join(f'"option{number}":1' for number in range(count)))
        response = tiny_server.client.post(path, content=body, headers={"content-type": "application/json"})
        return response.text

    assert "request has" not in ask(MOST_UNKNOWN)
    assert re.search(r"the request has 1\d unknown (or wrong )?fields", ask(MOST_UNKNOWN + 1))
