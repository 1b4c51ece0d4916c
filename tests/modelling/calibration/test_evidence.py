"""The measures of a space against their definitions; disguised sentences, and words of any script."""

import unicodedata
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score

from isosim.arrays import Vectors
from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput
from isosim.fitting import evidence, recognition, scripts
from isosim.fitting.evidence import LabelTest, Surface
from isosim.fitting.job import calibrate_job
from isosim.fitting.recognition import SENTENCES, disguised, recognition_of
from isosim.fitting.scripts import TOKEN, characters, is_unspaced, words
from isosim.jobs.job import JobRequest
from isosim.jobs.posted import Posted
from isosim.scoring.method import Method
from tests.stores import domains_of
from tests.text import sentences

WORDS = st.text("abcé 東京7.!Q", max_size=30)


METHODS = Method("identity"), Method("sn"), Method("whitening")


def gaussian(count: int, dim: int, seed: int = 0) -> Vectors:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def test_the_surface_is_words_letters_marks_digits_and_capitals() -> None:
    features = evidence.surface_features(["Ab, 12 c", ""])
    np.testing.assert_allclose(features, [[np.log(3), np.log(8 / 3), 1 / 8, 2 / 8, 1 / 8], [0, 0, 0, 0, 0]])


@given(st.integers(0, 1000))
def test_the_surface_share_is_that_of_a_linear_regression(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((60, 5))
    x = features[:, :2] @ rng.standard_normal((2, 8)) + rng.standard_normal((60, 8)) + 3
    residual = x - LinearRegression().fit(features, x).predict(features)
    expected = 1 - np.square(residual).sum() / np.square(x - x.mean(0)).sum()
    assert evidence.surface_share(x, evidence.surface_basis(features)) == pytest.approx(expected)


@pytest.mark.parametrize("used", [1, 3, 10])
@pytest.mark.parametrize("count", [12, 500])
def test_the_participation_ratio_counts_equally_strong_directions(used: int, count: int) -> None:
    directions = np.linalg.qr(np.random.default_rng(0).standard_normal((count, 40 if count > 40 else 11))).Q
    x = np.zeros((count, 30))
    centred = directions - directions.mean(0)
    x[:, :used] = np.linalg.svd(centred, full_matrices=False)[0][:, :used]
    assert evidence.participation_ratio(x + 5) == pytest.approx(used)


def test_the_bag_of_words_is_what_random_word_vectors_give_on_average() -> None:
    texts, dim = sentences(300), 64
    basis = evidence.surface_basis(evidence.surface_features(texts))
    tokens = [scripts.TOKEN.findall(text.lower()) for text in texts]
    vocabulary = sorted({token for words in tokens for token in words})
    shares, ratios = [], []
    for seed in range(30):
        table = dict(zip(vocabulary, np.random.default_rng(seed).standard_normal((len(vocabulary), dim)), strict=True))
        x = np.array([np.mean([table[token] for token in words], axis=0) for words in tokens])
        shares.append(evidence.surface_share(x, basis))
        ratios.append(evidence.participation_ratio(x))
    share, ratio = evidence.bag_of_words(texts, basis, dim)
    assert share == pytest.approx(np.mean(shares), rel=0.05)
    assert ratio == pytest.approx(np.mean(ratios), rel=0.05)


@given(st.lists(WORDS, min_size=2, max_size=12), st.integers(0, 100))
def test_any_text_has_finite_surface_evidence(texts: list[str], seed: int) -> None:
    surface = Surface.from_sentences(texts, gaussian(len(texts), 8, seed).astype(np.float64))
    assert all(np.isfinite(v) for v in (*vars(surface).values(), surface.rawness))
    assert 0 <= surface.share <= 1 + 1e-9
    assert surface.rawness >= 0


@given(st.integers(5, 40), st.integers(0, 1000), st.booleans())
def test_a_weighted_score_is_that_of_the_pairs_drawn_out(count: int, seed: int, binary: bool) -> None:
    """With ties, against scipy and scikit-learn."""
    rng = np.random.default_rng(seed)
    similarities = rng.integers(0, 8, count) / 8
    values = rng.integers(0, 2 if binary else 6, count).astype(np.float64)
    weights = rng.multinomial(count, np.full(count, 1 / count), 6).astype(np.float64)
    scores = evidence.bootstrapped(similarities, values, weights, "auroc" if binary else "spearman")
    for weight, value in zip(weights.astype(int), scores, strict=True):
        s, v = np.repeat(similarities, weight), np.repeat(values, weight)
        if np.ptp(v) == 0 or (np.ptp(s) == 0 and not binary):
            assert np.isnan(value)
        else:
            expected = roc_auc_score(v, s) if binary else spearmanr(s, v).statistic
            assert value == pytest.approx(expected, abs=1e-9)


def test_the_paired_bootstrap_tells_a_better_map_from_an_equal_one() -> None:
    rng = np.random.default_rng(0)
    grades = rng.standard_normal(300)
    good, poor = grades + rng.standard_normal(300), grades + 2 * rng.standard_normal(300)
    better, worse, same = METHODS
    test = LabelTest.from_labels({better: good, worse: poor, same: good}, grades, 0)
    assert test.p_not_better(better, worse) < 0.01
    assert test.p_not_better(worse, better) > 0.99
    assert test.p_not_better(same, better) == 1.0
    assert test.gain(better, worse) == pytest.approx(
        spearmanr(good, grades).statistic - spearmanr(poor, grades).statistic
    )


def test_the_bootstrap_finds_a_difference_in_no_more_than_its_share_of_chance_draws() -> None:
    """Two maps that are equally good: one is called better in about 5 % of samples of 100 pairs."""
    called = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        grades = rng.standard_normal(100)
        one, other = (grades + rng.standard_normal(100) for _ in range(2))
        maps = dict(zip(METHODS, (one, other), strict=False))
        called += LabelTest.from_labels(maps, grades, seed).p_not_better(*METHODS[:2]) <= 0.05
    assert 1 <= called <= 11


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_the_threshold_error_is_the_logarithm_of_the_factor_a_rate_is_off_by(factor: float) -> None:
    rates = (np.arange(100_000) + 0.5) / 100_000 / factor
    assert evidence.threshold_error(1 - rates) == pytest.approx(abs(np.log(factor)), abs=0.01)


@given(arrays(np.float64, st.integers(1, 500), elements=st.floats(0, 1)))
def test_a_threshold_error_is_finite_and_never_negative(percentiles: npt.NDArray[np.float64]) -> None:
    assert 0 <= evidence.threshold_error(percentiles) < np.inf


def test_the_report_of_a_space_tells_a_crowded_one_from_a_spread_one() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((2000, 32)).astype(np.float32)
    crowded = vectors + 5 * np.float32(rng.standard_normal(32))
    wide, narrow = evidence.spread(vectors, rng), evidence.spread(crowded, rng)
    assert wide["mean_random_cosine"] < 0.01
    assert narrow["mean_random_cosine"] > 0.9
    assert wide["effective_rank"] == pytest.approx(32, abs=0.5)
    assert narrow["effective_rank"] < 20


def test_every_disguise_keeps_what_is_said_and_changes_the_looks() -> None:
    for text in ("The cat sleeps.", "서울의 봄은 짧다.", "猫が歩く!"):
        found = disguised([text])
        assert len({*found, text}) == len(recognition.DISGUISES) + 1
        assert all(text.rstrip(".!").lower() in one.lower() for one in found)


def test_recognition_is_the_share_of_sentences_that_are_found_among_others_of_their_looks() -> None:
    rng = np.random.default_rng(0)
    own = rng.standard_normal((80, 1, 16))
    same, other = own + np.zeros((1, 4, 1)), rng.standard_normal((1, 4, 16)) + np.zeros((80, 1, 1))
    assert recognition.recognition(same.astype(np.float32)) == 1
    assert recognition.recognition((other + 0.01 * own).astype(np.float32)) == 0
    half = np.concatenate([same[:40], (other + 0.01 * own)[:40]]).astype(np.float32)
    assert recognition.recognition(half) == 0.5


def test_the_plain_sentences_and_the_domains_own_are_looked_for_and_the_better_found_counts() -> None:
    def knows(familiar: list[str]) -> recognition.Embed:
        def embed(texts: list[str]) -> Vectors:
            count = len(texts) // (1 + len(recognition.DISGUISES))
            assert texts[count:] == disguised(texts[:count])
            rng = np.random.default_rng(0)
            own, looks = rng.standard_normal((count, 16)), 10 * rng.standard_normal((len(recognition.DISGUISES), 16))
            if texts[0] in familiar:
                looks *= 0
            rest = own[:, None] + looks
            return np.concatenate([own, rest.reshape(-1, 16)]).astype(np.float32)

        return embed

    own = [f"sentence {number}" for number in range(100)]
    found = [recognition_of(own, knows(familiar), np.random.default_rng(1)) for familiar in ([], own, SENTENCES)]
    assert found[0] < 0.2
    assert found[1:] == [1, 1]
    assert len(SENTENCES) == len(set(SENTENCES)) == recognition.AMONG


def test_a_domains_long_texts_are_looked_for_by_their_beginnings() -> None:
    """Disguises change a text's ends and its capitals: any encoder finds a long one again."""
    looked_for: list[str] = []

    def embed(texts: list[str]) -> Vectors:
        looked_for.extend(texts[: len(texts) // (1 + len(recognition.DISGUISES))])
        return np.eye(len(texts), 8, dtype=np.float32)

    long = [
        f"Ticket {number} says that " + "the printer on the first floor is jammed again " * 9 for number in range(99)
    ]
    recognition_of([*long, *(f"{text} and more" for text in long)], embed, np.random.default_rng(1))
    own = looked_for[len(SENTENCES) :]
    assert len(own) == len(set(own)) == recognition.AMONG
    assert all(text.startswith("Ticket ") and len(text.split()) == recognition.WORDS for text in own)

    unspaced = recognition.beginning("東京の印刷機は今日も紙が詰まっている" * 20)
    assert len(unspaced) == recognition.CHARACTERS


SCRIPTS = {
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


@pytest.mark.parametrize("language", SCRIPTS)
def test_scripts_that_put_no_spaces_between_words_are_known(language: str) -> None:
    assert is_unspaced(SCRIPTS[language]) == (language in UNSPACED)


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
