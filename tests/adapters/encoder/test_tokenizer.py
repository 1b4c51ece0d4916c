"""Texts to token ids: cut at either end, marked where cut, never padded."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import BertProcessing, TemplateProcessing

from isosim.encoders.plain_words import PlainWords
from isosim.encoders.store import EncoderArtifact
from isosim.encoders.texts import Side
from isosim.encoders.tokenizer import FastTokenizer
from isosim.errors import TokenizerFailure
from isosim.export.checkpoints import resolve
from tests.modelling.encoder.families import trained
from tests.text import sentences


@pytest.fixture(scope="module")
def plain(tiny: EncoderArtifact) -> Tokenizer:
    """The tiny encoder's tokenizer without truncation."""
    tokenizer = Tokenizer.from_file(str(tiny.tokenizer))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@pytest.fixture(scope="module")
def bert(plain: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with [CLS] and [SEP] around a text, saved with padding and a truncation of its own."""
    path = tmp_path_factory.mktemp("bert") / "tokenizer.json"
    tokenizer = Tokenizer.from_str(plain.to_str())
    sep, cls = (tokenizer.token_to_id(token) or 0 for token in ("[SEP]", "[CLS]"))
    tokenizer.post_processor = BertProcessing(("[SEP]", sep), ("[CLS]", cls))
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(5)
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def minilm() -> Path:
    return resolve("minilm").folder / "tokenizer.json"  # an export takes it as it is


LONG = " ".join(sentences(5))


@pytest.mark.parametrize(("length", "truncated"), [(-1, True), (0, False), (1, False)])
def test_a_text_is_marked_truncated_only_where_something_is_missing(
    tiny: EncoderArtifact, plain: Tokenizer, length: int, truncated: bool
) -> None:
    count = len(plain.encode(LONG).ids)
    (found,) = FastTokenizer(tiny.tokenizer, count + length)([LONG], "right")
    assert found.truncated == truncated
    assert len(found.ids) == count - truncated


@pytest.mark.parametrize("side", ["right", "left"])
def test_special_tokens_count_and_stay_and_the_files_own_settings_do_not(
    bert: Path, plain: Tokenizer, side: str
) -> None:
    whole = plain.encode(LONG).ids
    cls, sep = plain.token_to_id("[CLS]"), plain.token_to_id("[SEP]")
    tokenize = FastTokenizer(bert, 12)
    (cut, short) = tokenize([LONG, "a boat"], side)  # type: ignore[arg-type]
    assert cut.ids == [cls, *(whole[:10] if side == "right" else whole[-10:]), sep]
    assert cut.truncated
    assert short.ids == [cls, *plain.encode("a boat").ids, sep]
    assert not short.truncated


def test_texts_of_a_batch_do_not_change_each_other(tiny: EncoderArtifact) -> None:
    tokenize = FastTokenizer(tiny.tokenizer, 12)
    texts = [LONG, "a", *sentences(5), LONG[::-1]]
    assert tokenize(texts, "right") == [tokenize([text], "right")[0] for text in texts]
    assert tokenize([], "right") == []


@pytest.mark.parametrize("text", ["\ud800", "a \udfff b"])
def test_what_is_no_unicode_text_is_a_tokenizer_failure(tiny: EncoderArtifact, text: str) -> None:
    with pytest.raises(TokenizerFailure):
        FastTokenizer(tiny.tokenizer, 12)(["fine", text], "right")


@pytest.mark.parametrize("text", ["", " ", "\0", "\u200b", "\ufeff", "🚣‍♀️" * 3, "a" * 10_000, "лодка"])
def test_any_unicode_text_gets_tokens_or_none_and_no_error(tiny: EncoderArtifact, text: str) -> None:
    (found,) = FastTokenizer(tiny.tokenizer, 12)([text], "right")
    assert len(found.ids) <= 12


def test_threads_share_a_tokenizer_and_its_two_sides(tiny: EncoderArtifact) -> None:
    tokenize = FastTokenizer(tiny.tokenizer, 12)
    expected = {side: tokenize([LONG] * 20, side) for side in ("right", "left")}
    with ThreadPoolExecutor(4) as pool:
        sides = ["right", "left"] * 20
        found = list(pool.map(lambda side: tokenize([LONG] * 20, side), sides))
    assert found == [expected[side] for side in sides]


def test_special_tokens_stand_for_no_characters(minilm: Path) -> None:
    tokenize = FastTokenizer(minilm, 256)
    pieces = tokenize.pieces(["A guitar猫"], special=True)[0]
    assert [piece.text for piece in pieces] == ["[CLS]", "A", "guitar", "猫", "[SEP]"]
    assert [(piece.start, piece.stop) for piece in pieces] == [(None, None), (0, 1), (2, 8), (8, 9), (None, None)]
    assert [piece.special for piece in pieces] == [True, False, False, False, True]
    assert [piece.id for piece in pieces] == tokenize(["A guitar猫"], "right")[0].ids
    assert [piece.text for piece in tokenize.pieces(["A guitar猫"], special=False)[0]] == ["A", "guitar", "猫"]


UNKNOWN = ["🙂", "🚀🎉", "ᚠᛇᚻ᛫ᛒᛦᚦ", "ᚠᛇ ᚻᛒ", "中文"]
SPECIAL = {"wordpiece": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "pieces": ["<s>", "<pad>", "</s>", "<unk>"]}


@pytest.fixture(scope="module", params=[*SPECIAL, "bytes"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """WordPiece, SentencePiece's Unigram, and byte-level BPE."""
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.json"
    trained(request.param, SPECIAL.get(request.param, ["<s>", "</s>", "<unk>"])).save(str(path))
    return request.param, path


def test_a_text_is_unreadable_where_the_vocabulary_knows_nothing_of_it(family: tuple[str, Path]) -> None:
    """Byte-level BPE knows every byte: its texts have tokens of their own, and vectors of their own."""
    kind, path = family
    tokenize = FastTokenizer(path, 16)
    assert [one.unreadable for one in tokenize(UNKNOWN, "right")] == [kind != "bytes"] * len(UNKNOWN)
    mixed = [f"the boat, the {text} boat, the boat and the boat" for text in UNKNOWN] + sentences(50)
    assert not any(one.unreadable for side in ("right", "left") for one in tokenize(mixed, side))
    assert tokenize([sentences(1)[0] + " 🙂" * 50], "left")[0].unreadable is (kind != "bytes")  # what is left of it


@pytest.mark.parametrize(
    ("text", "unreadable"),
    [
        ("నా పార్శిల్ ఎక్కడ ఉంది.", True),  # the full stop and digits are known, and are no words
        ("123: 😀 1!", True),
        ("Order 123: నా పార్శిల్ ఎక్కడ", True),
        ("thanks 😀", True),  # half of the words
        ("many thanks 😀", False),  # a third
        ("'Konoe no Tsubone' (近衛局)", False),
        ("123 456", False),  # no words, but known tokens
        ("!!!", False),
    ],
)
def test_a_text_is_unreadable_if_more_than_a_third_of_its_words_are_unknown(
    minilm: Path, text: str, unreadable: bool
) -> None:
    assert FastTokenizer(minilm, 64)([text], "right")[0].unreadable is unreadable


def test_texts_that_differ_only_in_unknown_words_have_the_same_hash_and_others_none(minilm: Path) -> None:
    tokenize = FastTokenizer(minilm, 8)
    texts = ["my parcel is 😀.", "my parcel is 😡.", "my parcel was 😀.", "Resume", "résumé", "a boat 😀 " * 8]
    one, same, other, *none = (tokens.unknown_hash for tokens in tokenize(texts, "right"))
    assert one == same != other
    assert 0 not in (one, other)
    assert none == [0, 0, 0]  # no unknown token, or truncated


def test_a_prompt_does_not_make_a_text_readable(family: tuple[str, Path]) -> None:
    kind, path = family
    prompts = ["a wooden boat: ", "the pilot "]
    tokenize = FastTokenizer(path, 32, ["", *prompts])
    for prompt in prompts:
        found = tokenize([prompt + text for text in UNKNOWN], "right")
        assert [one.unreadable for one in found] == [kind != "bytes"] * len(UNKNOWN)
        known = [prompt + "boat", prompt + prompt, prompt, prompt.strip(), "boat a wooden", prompt + "🙂 pilot boat"]
        assert not any(one.unreadable for one in tokenize(known, "right"))


def test_a_byte_fallback_reads_what_the_vocabulary_lacks(tmp_path: Path) -> None:
    """As Llama's and Gemma's tokenizers do it."""
    pieces = [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    vocabulary = [("<unk>", 0.0), ("▁", -2.0), ("▁boat", -3.0), *pieces]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = FastTokenizer(tmp_path / "tokenizer.json", 32)(["🙂", "🚀", "boat"], "right")
    assert not any(one.unreadable for one in found)
    assert found[0].ids != found[1].ids


def test_control_characters_and_overlong_words_are_unreadable_for_bert(minilm: Path) -> None:
    tokenize = FastTokenizer(minilm, 256)
    texts = ["\0\u200b", "x" * 101, "[MASK]", "🙂", "猫", "x" * 100, "a"]
    assert [one.unreadable for one in tokenize(texts, "right")] == [True] * 5 + [False] * 2


WORDS = st.sampled_from(
    ["how", "Log", "unbelievable", "zx" * 60, "don't", "3.14", "[MASK]", "<s>", "$", "\t", "\x7f", "é", "a" * 101]
)


@given(
    st.lists(WORDS | st.text(st.characters(min_codepoint=32, max_codepoint=128), max_size=12), max_size=12).map(
        " ".join
    )
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("side", ["right", "left"])
def test_plain_words_are_the_tokens_of_the_tokenizer(minilm: Path, side: Side, text: str) -> None:
    tokenize = opened(minilm)
    expected = tokenize.sides[side].encode(text)
    (found,) = tokenize([text], side)
    assert (list(found.ids), found.truncated) == (expected.ids, bool(expected.overflowing))


def test_a_text_that_is_too_long_is_given_up_early(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, seen = opened(minilm).plain, list[str]()
    assert plain is not None

    class Counted:
        def tokenize(self, word: str) -> list[Any]:
            seen.append(word)
            return model.tokenize(word)

    model = plain.model
    monkeypatch.setattr(plain, "model", Counted())
    assert plain("zxqj " * 19, 16) is None
    assert 0 < len(seen) < 16
    seen.clear()
    assert plain("zxqj " * 20, 16) is None
    assert seen == []


@cache
def opened(path: Path) -> FastTokenizer:
    return FastTokenizer(path, 16)


def cased(made: Tokenizer) -> None:
    made.normalizer = normalizers.BertNormalizer(lowercase=False)


def by_spaces(made: Tokenizer) -> None:
    made.pre_tokenizer = pre_tokenizers.Whitespace()


def knows_a_word(made: Tokenizer) -> None:
    made.add_tokens(["house"])


def twice(made: Tokenizer) -> None:
    made.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP] $A", special_tokens=[("[CLS]", 101), ("[SEP]", 102)]
    )


@pytest.mark.parametrize("change", [cased, by_spaces, knows_a_word, twice])
def test_another_tokenizer_has_no_plain_words(minilm: Path, change: Callable[[Tokenizer], None]) -> None:
    tokenizer = FastTokenizer(minilm, 16).whole
    assert PlainWords.of(tokenizer) is not None
    change(tokenizer)
    assert PlainWords.of(tokenizer) is None


def test_a_word_longer_than_the_model_takes_is_unknown_though_the_vocabulary_has_it(minilm: Path) -> None:
    tokenizer = FastTokenizer(minilm, 16).whole
    tokenizer.model = models.WordPiece(tokenizer.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=3)  # noqa: S106
    plain = PlainWords.of(tokenizer)
    assert plain is not None
    assert plain("house and", 16) == tokenizer.encode("house and").ids
