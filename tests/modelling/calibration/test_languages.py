"""Words and marks in scripts with and without spaces; a calibration of text without any."""

import unicodedata
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.fitting.job import calibrate_job
from isosim.fitting.scripts import TOKEN, characters, is_unspaced, words
from isosim.jobs.job import JobRequest
from isosim.jobs.posted import Posted
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
    ("split", "text", "expected"),
    [
        (TOKEN.findall, "हिन्दी में 12।", ["हिन्दी", "में", "12", "।"]),
        (TOKEN.findall, "mie\u0301l a\u0300.", ["mie\u0301l", "a\u0300", "."]),
        (TOKEN.findall, "می\u200cخواهم", ["می\u200cخواهم"]),
        (TOKEN.findall, "北𠀀ดี", ["北", "𠀀", "ดี"]),
        (TOKEN.findall, "a\u200eb\u00ad, x", ["a", "b", ",", "x"]),
        (characters, "กำ ตั้ง", ["ก", "ำ", "ตั้", "ง"]),
        (characters, "👩🏽‍🚀e\u0301👍🏿", ["👩🏽‍🚀", "e\u0301", "👍🏿"]),
        (words, "The pilot, twice a year.", ["The", "pilot,", "twice", "a", "year."]),
        (words, "今天很好，走吧。", ["今", "天", "很", "好，", "走", "吧。"]),
        (words, "我用Python3写，abc def。", ["我", "用", "Python3", "写，abc", "def。"]),
        (words, "กำลังดี", ["ก", "ำ", "ลั", "ง", "ดี"]),
        (words, "오늘은 날씨가", ["오늘은", "날씨가"]),
        (words, "अच्छा है", ["अच्छा", "है"]),
        (words, "", []),
    ],
)
def test_text_is_split_between_letters_and_marks_stay_with_theirs(
    split: Callable[[str], list[str]], text: str, expected: list[str]
) -> None:
    assert split(text) == expected


def test_an_encoder_that_knows_no_character_of_a_domain_is_not_calibrated(
    tiny: EncoderArtifact, tmp_path: Path
) -> None:
    request, posted = JobRequest("d", tiny.digest, tiny.id), Posted(chinese(300))
    with pytest.raises(InvalidInput, match=r"300 of [0-9]+ distinct sentences are unreadable"):
        calibrate_job(request, posted, tiny, domains_of(tmp_path), lambda *_: None, threads=1)
