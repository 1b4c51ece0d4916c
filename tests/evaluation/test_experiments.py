"""The counting behind `python -m evaluation`: what is counted, when a promise counts as kept, and the command line."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from evaluation import ranking, searches, thresholds, trained_encoders
from evaluation.__main__ import main
from evaluation.corpora import Bench
from isosim.arrays import Vectors
from isosim.scoring.similarity import normalized
from tests.text import sentences


def written(folder: Path, name: str, lines: Sequence[str]) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")


def test_searches_are_counted_as_the_law_of_independent_entries_has_it() -> None:
    """If vectors are independent, 1 − (1 − p)^G of searches among G entries find one above a pair's rate p."""
    rng = np.random.default_rng(0)
    unit = normalized(rng.standard_normal((3000, 16)).astype(np.float32))
    cosines = (unit @ unit.T)[~np.eye(3000, dtype=bool)]
    threshold = float(np.quantile(cosines, 1 - 1e-4))
    for gallery in (100, 1000):
        found = searches.searched(unit, gallery, threshold, np.random.default_rng(1))
        assert found == pytest.approx(1 - (1 - 1e-4) ** gallery, rel=0.15)


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


@pytest.mark.parametrize(
    ("simcse", "both", "kept"), [(66.0, 68.0, [True, True, True, True]), (65.9, 65.8, [False, True, False, False])]
)
def test_what_the_training_has_to_show(simcse: float, both: float, kept: list[bool]) -> None:
    names = ["simcse-seed0", "simcse-seed1"]
    scores = dict(zip([trained_encoders.RAW, *names], [(58.0, 67.0), (simcse, both), (66.5, 67.0)], strict=True))
    means = {(name, method): scores[name][at] for name in scores for at, method in enumerate(("identity", "auto"))}
    assert [row["kept"] for row in trained_encoders.promises(means, names)] == kept


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
