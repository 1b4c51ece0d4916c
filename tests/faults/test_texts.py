"""Whatever a body holds, it is answered with a status below 500, and what is scored gets finite, symmetric scores."""

import json
import math
from itertools import pairwise

import pytest

from tests.processes import Server

JSON = {"content-type": "application/json"}
ROUTES = ("/similarity", "/embed", "/rerank", "/score", "/tokenize", "/v1/embeddings", "/calibrate",
          "/domains/default/labels", "/v2/models/isosim/infer")  # fmt: skip
DEEP = 100_000


def answered(server: Server, path: str, content: bytes) -> int:
    response = server.client.post(path, content=content, headers=JSON)
    assert 400 <= response.status_code < 500, (path, response.status_code, response.text)
    assert "error" in response.json()
    return response.status_code


HOSTILE = {
    "deep lists": b"[" * DEEP,
    "deep lists, closed": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"pairs":' * (DEEP // 10),
    "deep pairs": b'{"pairs": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "no UTF-8": b'{"pairs": [["\xff\xfe", "a"]]}',
    "an overlong UTF-8": b'{"pairs": [["\xc0\xaf", "a"]]}',
    "a surrogate in UTF-8": b'{"pairs": [["\xed\xa0\x80", "a"]]}',
    "a lone high surrogate": b'{"pairs": [["\\ud800", "a"]]}',
    "a lone low surrogate": b'{"pairs": [["a\\udfffb", "a"]]}',
    "surrogates the wrong way round": b'{"pairs": [["\\udc00\\ud800", "a"]]}',
    "a raw NUL": b'{"pairs": [["a\x00b", "a"]]}',
    "a huge number": b'{"pairs": ' + b"9" * 100_000 + b"}",
    "infinity": b'{"pairs": [[Infinity, NaN]]}',
    "a huge exponent": b'{"pairs": [[1e999999999, 1]]}',
    "a million characters": json.dumps({"pairs": [["x" * 1_000_000, "a"]]}).encode(),
    "an empty text": b'{"pairs": [["", "a"]]}',
    "blanks": json.dumps({"pairs": [["\u2003\u2028\u3000\t", "a"]]}).encode(),
    "nothing": b"",
    "only a mark of the byte order": b"\xef\xbb\xbf",
    "UTF-16": json.dumps({"pairs": [["a", "b"]]}).encode("utf-16"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_body_is_refused_on_every_route(tiny_server: Server, name: str) -> None:
    for path in ROUTES:
        answered(tiny_server, path, HOSTILE[name])
    assert tiny_server.client.put("/domains/d/champion", content=HOSTILE[name], headers=JSON).status_code < 500
    assert tiny_server.client.get("/readyz").status_code == 200


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_of_a_calibration_is_refused(tiny_server: Server, name: str) -> None:
    for kind in ("application/x-ndjson", "text/plain"):
        answer = tiny_server.client.post(
            "/calibrate?domain=d&method=sn", content=HOSTILE[name], headers={"content-type": kind}
        )
        assert 400 <= answer.status_code < 500, (kind, answer.text)


def scores(server: Server, pairs: list[list[str]]) -> list[float]:
    answer = server.client.post("/similarity", json={"pairs": pairs}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: list[float] = answer.json()["similarity"]
    return found


def finite_and_symmetric(server: Server, texts: list[str]) -> None:
    pairs = [[a, b] for a, b in pairwise(texts)]
    both = scores(server, pairs + [[b, a] for a, b in pairs])
    assert all(math.isfinite(score) and -1 <= score <= 1 for score in both)
    assert both[: len(pairs)] == both[len(pairs) :]


ODD = (
    "a\x00b",
    "\x00",
    "\x7f\x1b[31m",
    "word" * 2500,  # 10,000 characters without a blank
    "a " * 5000,
    "e" + "\u0301" * 5000,  # combining marks upon one letter
    "\u202e\u2066reversed\u2069",
    "\u200b\u200d\ufeff",  # nothing that can be seen
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "\U0010ffff\ufffe\ufdd0",  # noncharacters
    "ﷺ",  # one character that normalization makes 18 of
    "İIıi ẞß ΐ",
    "한글",
    "𝕳𝖊𝖑𝖑𝖔",
    "[CLS] [SEP] [PAD] [UNK] [MASK]",
    "' OR 1=1; --",
    "${jndi:ldap://x}",
    "%s%n%x",
)


def with_tokens(server: Server, texts: list[str]) -> list[str]:
    """Those the encoder has tokens for; this one adds none of its own."""
    answer = server.client.post("/tokenize", json={"inputs": texts})
    assert answer.status_code == 200, answer.text
    return [text for text, tokens in zip(texts, answer.json(), strict=True) if tokens]


def test_odd_texts_get_finite_symmetric_scores_or_are_refused_where_nothing_is_left_of_them(
    tiny_server: Server,
) -> None:
    scored = with_tokens(tiny_server, list(ODD))
    finite_and_symmetric(tiny_server, scored)
    refused = set(ODD) - set(scored)
    assert "\x00" in refused
    for text in refused:
        answer = tiny_server.client.post("/similarity", json={"pairs": [[text, "a"]]})
        assert (answer.status_code, answer.json()["error_type"]) == (422, "Tokenizer")
