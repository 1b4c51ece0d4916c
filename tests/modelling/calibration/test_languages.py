"""Words, marks and altered copies in scripts with and without spaces; a calibration of text without any."""

import unicodedata
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from isosim.arrays import Vectors
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import InvalidInput
from isosim.fitting import gate
from isosim.fitting.evidence import TOKEN, Surface, noise, noised, surface_basis, surface_features
from isosim.fitting.job import CalibrationInput, calibrate_job
from isosim.fitting.out_of_domain import shuffled_copies
from isosim.fitting.scripts import LETTER, characters, is_unspaced, join_words, words
from isosim.jobs.job import JobRequest
from isosim.scoring.method import IDENTITY
from tests.encoders import export, save_bert
from tests.modelling.calibration.test_gate import by_looks
from tests.stores import domains_of

SENTENCES = {
    "Korean": "오늘은 날씨가 아주 좋습니다.",
    "Korean, decomposed": unicodedata.normalize("NFD", "오늘은 날씨가 아주 좋습니다."),
    "Chinese": "今天天气很好，我们去公园散步。",
    "Chinese with Latin": "我们用 Python 3 写 machine learning 程序。",
    "Japanese": "今日はとても天気がいいですね。",
    "Thai": "วันนี้อากาศดีมากเราไปเดินเล่นกัน",
    "Khmer": "ថ្ងៃនេះអាកាសធាតុល្អណាស់",
    "Arabic": "الطقس جميل جدا اليوم، أليس كذلك؟",
    "Arabic with vowels": "اَلطَّقْسُ جَمِيلٌ جِدًّا اَلْيَوْمَ",
    "Hebrew": "מזג האוויר יפה מאוד היום.",
    "Persian": "می‌خواهم به خانه بروم",
    "Hindi": "आज मौसम बहुत अच्छा है।",
    "decomposed": unicodedata.normalize("NFD", "Où est l’été déjà promis, où?"),
    "emoji": "Well done 👩🏽‍🚀👍🏿 🏳️‍🌈 1️⃣ 🇰🇷!",
    "directions": "\u200fשלום\u200e hello \u2067עולם\u2069",
}
UNSPACED = {"Chinese", "Chinese with Latin", "Japanese", "Thai", "Khmer"}

# Sentences of our own, as in tests/text.py: who does what, where.
WHO = "农民|飞行员|老教师|我的邻居|小提琴家|年轻医生|市长|她的表哥"
DOES = "修理|描述|忘记|携带|出售|欣赏|借用|拍摄"
WHAT = "一条木船|坏了的钟|三封信|海岸地图|花园的门|空箱子"
WHERE = "在车站后面|在雨中|午饭以后|在没有人看的河边|非常小心地"


def chinese(count: int) -> list[str]:
    """Up to 1,920 distinct sentences without a space."""
    every = ["".join((who, where, does, what, "。")) for who, does, what, where in product(
        *(part.split("|") for part in (WHO, DOES, WHAT, WHERE)))]  # fmt: skip
    return [every[(i * 701) % len(every)] for i in range(count)]


@pytest.mark.parametrize("language", SENTENCES)
def test_scripts_that_put_no_spaces_between_words_are_known(language: str) -> None:
    assert is_unspaced(SENTENCES[language]) == (language in UNSPACED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The pilot, twice a year.", ["The", "pilot,", "twice", "a", "year."]),
        ("今天很好，走吧。", ["今", "天", "很", "好，", "走", "吧。"]),
        ("我用Python3写，abc def。", ["我", "用", "Python3", "写，abc", "def。"]),
        ("กำลังดี", ["ก", "ำ", "ลั", "ง", "ดี"]),
        ("오늘은 날씨가", ["오늘은", "날씨가"]),
        ("अच्छा है", ["अच्छा", "है"]),
        ("", []),
    ],
)
def test_a_letter_of_a_script_without_spaces_is_a_word_with_its_marks(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text("abcé 7.!Q\u0301", max_size=40))
def test_text_with_spaces_has_the_words_that_spaces_part(text: str) -> None:
    assert words(text) == text.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("हिन्दी में 12।", ["हिन्दी", "में", "12", "।"]),
        ("mie\u0301l a\u0300.", ["mie\u0301l", "a\u0300", "."]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("北𠀀ดี", ["北", "𠀀", "ดี"]),
        ("a\u200eb\u00ad, x", ["a", "b", ",", "x"]),
    ],
)
def test_a_token_of_the_bag_of_words_keeps_its_marks(text: str, expected: list[str]) -> None:
    assert TOKEN.findall(text) == expected


@pytest.mark.parametrize("text", [SENTENCES["Hindi"], SENTENCES["Arabic with vowels"], SENTENCES["Thai"]])
def test_vowel_signs_are_no_punctuation(text: str) -> None:
    share = surface_features([text])[0, 2]
    assert share == sum(unicodedata.category(c).startswith(("P", "S")) for c in text) / len(text)


def test_a_text_shows_the_same_words_and_marks_composed_and_decomposed() -> None:
    composed = "Où est l’été déjà promis, où?"
    lengths = [len(composed), len(SENTENCES["decomposed"])]
    one, other = surface_features([composed, SENTENCES["decomposed"]])
    assert one[0] == other[0]
    assert one[2] * lengths[0] == pytest.approx(other[2] * lengths[1])


def test_a_chinese_sentence_is_not_one_word() -> None:
    features = surface_features(chinese(50))
    assert (features[:, 0] > np.log(8)).all()  # the shortest has nine characters
    assert np.ptp(features[:, 0]) > 0.3


def test_characters_are_those_of_a_reader() -> None:
    assert characters("กำ ตั้ง") == ["ก", "ำ", "ตั้", "ง"]
    assert characters("👩🏽‍🚀e\u0301👍🏿") == ["👩🏽‍🚀", "e\u0301", "👍🏿"]


@pytest.mark.parametrize("language", SENTENCES)
def test_an_altered_copy_holds_whole_words_of_its_text(language: str) -> None:
    text = SENTENCES[language]
    for seed in range(20):
        copy = noise(text, np.random.default_rng(seed))
        assert copy
        assert not set(words(copy)) - set(words(text)) or is_unspaced(text)
        assert len(copy) <= len(text)
        assert not unicodedata.category(copy[0]).startswith("M")


def test_a_copy_of_text_without_spaces_loses_a_fifth_of_its_characters_and_keeps_its_latin_words() -> None:
    rng = np.random.default_rng(0)
    text = SENTENCES["Chinese with Latin"]
    copies = [noise(text, rng) for _ in range(300)]
    letters = [len(LETTER.findall(copy)) for copy in copies]
    assert np.mean(letters) == pytest.approx(0.8 * len(LETTER.findall(text)), rel=0.05)
    assert {"Python", "machine"} <= {word for copy in copies for word in words(copy)}
    assert not any("machinelearning" in copy for copy in copies)


def test_words_put_together_again_are_the_text() -> None:
    for text in ("我们用machine learning程序。", "今天天气很好，去吧。", "กำลังดี"):
        assert join_words(words(text)) == text


@pytest.mark.parametrize("language", SENTENCES)
def test_a_domain_of_any_language_has_evidence_and_copies(language: str) -> None:
    texts = [f"{SENTENCES[language]} {number}" for number in range(60)]
    vectors = np.random.default_rng(0).standard_normal((60, 16))
    surface = Surface.from_sentences(texts, vectors)
    assert all(np.isfinite(value) for value in (*vars(surface).values(), surface.rawness))
    rows, copies = noised(texts, 30, np.random.default_rng(0))
    assert len(rows) == len(copies) == 30
    for copy in shuffled_copies(texts, 30, np.random.default_rng(0)):
        assert copy.strip()


def bag_of_characters(texts: list[str], raw: float) -> Vectors:
    """Means of random token vectors, with directions added that count characters, marks and digits."""
    rng = np.random.default_rng(0)
    tokens = [TOKEN.findall(text) for text in texts]
    table = {token: rng.standard_normal(64) for token in sorted({token for row in tokens for token in row})}
    x = np.array([np.mean([table[token] for token in row], axis=0) for row in tokens])
    x = (x - x.mean(0)) / x.std()
    basis = surface_basis(surface_features(texts)) * np.sqrt(len(texts))
    vectors: Vectors = (x + raw * basis @ rng.standard_normal((basis.shape[1], 64)) + min(raw, 1)).astype(np.float32)
    return vectors


def test_the_gate_leaves_chinese_alone_unless_its_vectors_show_length() -> None:
    texts = chinese(gate.SENTENCES_FULL)
    left, corrected = (gate.decide(texts, bag_of_characters(texts, raw), by_looks) for raw in (0.0, 1.0))
    assert left.method == IDENTITY
    assert left.surface is not None
    assert left.surface.share_ratio == pytest.approx(1, abs=0.5)
    assert corrected.method.name == "soft"


def test_a_chinese_domain_is_calibrated_from_text_to_threshold(tmp_path: Path) -> None:
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(chinese(1000), vocab_size=400, show_progress=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    save_bert(tmp_path, seed=0, dim=32, layers=1)
    encoder = EncoderStore.at(export(tmp_path / "store", "chinese", str(tmp_path), max_length=32)).find("chinese")
    request = JobRequest("d", encoder.digest, encoder.id)
    result = calibrate_job(
        request, CalibrationInput(chinese(300)), encoder, domains_of(tmp_path), lambda *_: None, threads=1
    )
    assert result.report.sentences == 300
    assert result.model.reference is not None
    assert -1 <= result.model.reference.threshold(0.05) <= 1


def test_an_encoder_that_knows_no_character_of_a_domain_is_not_calibrated(
    tiny: EncoderArtifact, tmp_path: Path
) -> None:
    request, posted = JobRequest("d", tiny.digest, tiny.id), CalibrationInput(chinese(300))
    with pytest.raises(InvalidInput, match=r"300 of [0-9]+ distinct sentences are unreadable"):
        calibrate_job(request, posted, tiny, domains_of(tmp_path), lambda *_: None, threads=1)
