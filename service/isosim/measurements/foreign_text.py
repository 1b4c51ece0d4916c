"""Measures how much foreign text a domain of Wikipedia sentences flags, and how often it raises a false alarm.

Foreign text is text of another kind: for example news, source code, or sentences with shuffled words. A false alarm is
an unseen Wikipedia sentence that is flagged.
"""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from isosim.arrays import Rows
from isosim.fitting import out_of_domain
from isosim.measurements.sources import HOME, KOREAN, SOURCES, Encoder, Progress, sample
from isosim.scoring.out_of_domain import FALSE_ALARMS, DomainTest

SENTENCES = 10_000  # number of sentences to which the domain is fitted
TESTED = 10_000  # number of other sentences of Wikipedia, on which false alarms are counted
FOREIGN = 2000  # number of texts of each foreign kind
FALSE_ALARM_BAR = (0.005, 0.015)  # lower and upper limit of the promised false-alarm rate
FIFTHS = 5


@dataclass(frozen=True)
class Result:
    """Shares of flagged texts: of unseen Wikipedia sentences (false alarms), and of each kind of `foreign` text."""

    false_alarms: float
    by_length: list[float]  # false alarms in each fifth of the sentences, from the shortest fifth to the longest
    auroc: dict[str, float]  # kind of `foreign` text -> AUROC against unseen Wikipedia sentences
    detected: dict[str, float]  # kind of `foreign` text -> share that is flagged

    @property
    def kept(self) -> bool:
        return FALSE_ALARM_BAR[0] <= self.false_alarms <= FALSE_ALARM_BAR[1]


def source_code() -> list[str]:
    """Lines of code from Python's standard library, without short lines and comments."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    lines = [line.strip() for f in files for line in f.read_text(encoding="utf-8", errors="ignore").split("\n")]
    return [line for line in lines if len(line) >= 15 and not line.startswith(("#", '"""'))]


def foreign(data: Path, home: list[str], rng: np.random.Generator) -> dict[str, list[str]]:
    """Foreign texts by kind. Three kinds are made of words from the sentences `home`, shuffled or drawn at random."""
    lengths = rng.permutation([len(text.split()) for text in home])[:FOREIGN]
    words = np.array([word for text in home for word in text.split()])
    vocabulary = np.unique(words)
    texts = {
        "film reviews": SOURCES["imdb-reviews"](data),
        "news": SOURCES["reuters-news"](data),
        "source code": source_code(),
        "Korean": KOREAN(data),
    }
    chosen = {
        kind: pick(list(dict.fromkeys(t.strip() for t in lines if t.strip())), rng) for kind, lines in texts.items()
    }
    return chosen | {
        "words of a sentence, shuffled": [" ".join(rng.permutation(text.split())) for text in pick(home, rng)],
        "words drawn by frequency": [" ".join(rng.choice(words, length)) for length in lengths],
        "words drawn from the vocabulary": [" ".join(rng.choice(vocabulary, length)) for length in lengths],
    }


def pick(texts: list[str], rng: np.random.Generator) -> list[str]:
    return [texts[row] for row in rng.permutation(len(texts))[:FOREIGN]]


def measure(data: Path, encode: Encoder, progress: Progress, seed: int = 0) -> Result:
    """Fits the out-of-domain test to Wikipedia sentences; tests unseen Wikipedia sentences and text of other kinds."""
    rng = np.random.default_rng(seed)
    everything = sample(data, HOME, SENTENCES + TESTED, least=SENTENCES + TESTED, seed=seed)
    mine, others = everything[:SENTENCES], everything[SENTENCES:]
    vectors, tokens = encode(mine, lambda done: progress(HOME, done))
    shuffled = out_of_domain.shuffled_copies(mine, out_of_domain.SHUFFLED, rng)
    test = out_of_domain.fit(vectors, tokens, encode(shuffled)[0], rng)
    own, own_tokens = judged(test, encode, others, lambda done: progress("false alarms", done))
    flagged = own < FALSE_ALARMS
    fifths = np.array_split(np.argsort(own_tokens, kind="stable"), FIFTHS)
    auroc, detected = {}, {}
    for kind, texts in foreign(data, others, rng).items():
        odd, _ = judged(test, encode, texts, lambda done, kind=kind: progress(kind, done))  # type: ignore[misc]
        truth = np.concatenate([np.zeros(len(own)), np.ones(len(odd))])
        auroc[kind] = float(roc_auc_score(truth, -np.concatenate([own, odd])))
        detected[kind] = float((odd < FALSE_ALARMS).mean())
    return Result(float(flagged.mean()), [float(flagged[fifth].mean()) for fifth in fifths], auroc, detected)


def judged(
    test: DomainTest, encode: Encoder, texts: list[str], progress: Callable[[float], None]
) -> tuple[npt.NDArray[np.float64], Rows]:
    vectors, tokens = encode(texts, progress)
    return test.judge(vectors, tokens).p_values, tokens
