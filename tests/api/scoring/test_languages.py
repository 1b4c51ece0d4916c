"""Text of many scripts through HTTP, with the default encoder: scores, tokens, limits, lines, what is no text."""

import shutil
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Serve, Server

LANGUAGES = {
    "Korean": "오늘은 날씨가 아주 좋습니다.",
    "Chinese": "今天天气很好，我们去公园散步。",
    "Arabic": "الطقس جميل جدا اليوم، أليس كذلك؟",
    "Arabic with vowels": "اَلطَّقْسُ جَمِيلٌ",
    "Hebrew in English": "He said שלום עולם and left.",
    "Hindi": "आज मौसम बहुत अच्छा है।",
    "Thai": "วันนี้อากาศดีมาก",
    "emoji": "Well done 👩🏽‍🚀👍🏿 🏳️‍🌈 1️⃣ 🇰🇷!",
    "combining": "cafe\u0301 nai\u0308ve Z\u0351\u036b\u0343algo",
    "beyond the first plane": "𝒜𝓁𝑔𝑒𝒷𝓇𝒶 𠀀𠀁 end",
    "directions": "\u202bعربي\u202c \u200eabc\u200f",
}


@pytest.fixture(scope="module")
def server(module_serve: Serve, minilm_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    copy = shutil.copytree(minilm_store, tmp_path_factory.mktemp("languages") / "store")
    return module_serve(model_store=copy, encoder="minilm")


def scored(server: Server, pairs: list[list[str]]) -> dict[str, Any]:
    response = server.client.post("/similarity", json={"pairs": pairs})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def pieces_of(server: Server, text: str) -> list[dict[str, Any]]:
    response = server.client.post("/tokenize", json={"inputs": text, "add_special_tokens": False})
    assert response.status_code == 200, response.text
    (found,) = response.json()
    return list(found)


def test_every_language_is_scored_and_a_sentence_is_like_itself(server: Server) -> None:
    texts = list(LANGUAGES.values())
    found = scored(server, [[text, text] for text in texts] + [[a, b] for a, b in pairwise(texts)])
    assert found["similarity"][: len(texts)] == pytest.approx([1.0] * len(texts), abs=1e-6)
    assert max(found["similarity"][len(texts) :]) < 0.95
    assert not any(flags["a"] and "truncated" in flags["a"] for flags in found["flags"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_tokens_place_is_counted_in_characters_and_cuts_it_out_of_the_text(server: Server, language: str) -> None:
    text = LANGUAGES[language]
    pieces = pieces_of(server, text)
    assert all(piece["text"] == text[piece["start"] : piece["stop"]] for piece in pieces)
    assert all(piece["text"] for piece in pieces)
    starts = [piece["start"] for piece in pieces]
    assert starts == sorted(starts)
    covered = {place for piece in pieces for place in range(piece["start"], piece["stop"])}
    missed = {c for place, c in enumerate(text) if place not in covered}
    # What the encoder's normalizer takes out: accents, and characters without a look of their own.
    assert all(c.isspace() or unicodedata.category(c) in {"Mn", "Cf"} for c in missed), missed
    (word,) = [piece for piece in pieces_of(server, "👍🏿𝒜 end") if piece["text"] == "end"]
    assert (word["start"], word["stop"]) == (4, 7)  # in UTF-16 it is 7, in UTF-8 13


def test_a_limit_counts_characters_whatever_their_bytes(server: Server) -> None:
    for count, status in ((10_000, 200), (10_001, 422)):
        for letter in ("水", "👍"):
            answer = server.client.post("/similarity", json={"pairs": [[letter * count, "a"]]})
            assert answer.status_code == status


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("날씨가", unicodedata.normalize("NFD", "날씨가")), ("déjà vu", unicodedata.normalize("NFD", "déjà vu")),
        ("שלום hello", "\u200fשלום\u200e hel\u200blo\ufeff"),
    ],
)  # fmt: skip
def test_forms_that_the_default_encoder_does_not_tell_apart_score_alike_and_are_two_texts_to_the_cache(
    server: Server, one: str, other: str
) -> None:
    def spent(text: str) -> int:
        return int(server.client.post("/embed", json={"inputs": text}).headers["x-compute-tokens"])

    assert one != other
    assert scored(server, [[one, other]])["cosine"] == pytest.approx([1.0], abs=1e-6)
    assert (spent(f"{one} twice") > 0, spent(f"{other} twice") > 0, spent(f"{one} twice")) == (True, True, 0)
