"""Text from elsewhere: what the out-of-domain test of a Wikipedia domain flags, and scores of unknown words."""

import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from evaluation.calibrated import within
from evaluation.corpora import HOME, SOURCES, Bench, Row
from isosim.arrays import Doubles
from isosim.fitting import out_of_domain
from isosim.jobs.labelled_pairs import read_pairs
from isosim.jobs.text_lines import read_lines
from isosim.scoring.out_of_domain import FALSE_ALARMS
from isosim.scoring.similarity import cosine, normalized

FOREIGN = 2000  # number of texts of each foreign kind
FALSE_ALARM_BAR = (0.005, 0.015)  # promised share of unseen sentences of the domain that are flagged
FIFTHS = 5


def foreign_text(bench: Bench, sentences: int = 10_000, seed: int = 0) -> Iterator[Row]:
    """Share of texts that a Wikipedia domain flags: as many unseen Wikipedia sentences, and other kinds of text."""
    rng = np.random.default_rng(seed)
    everything = bench.sample(HOME, 2 * sentences, least=2 * sentences, seed=seed)
    mine, others = everything[:sentences], everything[sentences:]
    vectors, tokens = bench.encoder(mine)
    shuffled = out_of_domain.shuffled_copies(mine, out_of_domain.SHUFFLED, rng)
    test = out_of_domain.fit(vectors, tokens, bench.encoder.vectors(shuffled), rng)

    def p_values(texts: Sequence[str]) -> Doubles:
        found: Doubles = test.judge(*bench.encoder(texts))
        return found

    own = p_values(others)
    flagged = own < FALSE_ALARMS
    kept = within([float(flagged.mean())], FALSE_ALARM_BAR) == 1
    yield {"text": "own, unseen", "flagged, %": 100 * float(flagged.mean()), "kept": kept}
    by_length = np.argsort(bench.encoder(others)[1], kind="stable")
    for number, fifth in enumerate(np.array_split(by_length, FIFTHS), 1):
        yield {"text": f"own, fifth {number} by length", "flagged, %": 100 * float(flagged[fifth].mean())}
    for kind, texts in foreign(bench, others, rng).items():
        odd = p_values(texts)
        truth = np.concatenate([np.zeros(len(own)), np.ones(len(odd))])
        auroc = float(roc_auc_score(truth, -np.concatenate([own, odd])))
        yield {"text": kind, "flagged, %": 100 * float((odd < FALSE_ALARMS).mean()), "AUROC": auroc}


def source_code() -> list[str]:
    """Lines of code from Python's standard library, without short lines and comments."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    lines = [line.strip() for f in files for line in f.read_text(encoding="utf-8", errors="ignore").split("\n")]
    return [line for line in lines if len(line) >= 15 and not line.startswith(("#", '"""'))]


def foreign(bench: Bench, home: list[str], rng: np.random.Generator) -> dict[str, list[str]]:
    """Foreign texts by kind. Three kinds are made of words from the sentences `home`, shuffled or drawn at random."""

    def pick(texts: list[str]) -> list[str]:
        return [texts[row] for row in rng.permutation(len(texts))[:FOREIGN]]

    lengths = rng.permutation([len(text.split()) for text in home])[:FOREIGN]
    words = np.array([word for text in home for word in text.split()])
    vocabulary = np.unique(words)
    texts = {
        "film reviews": SOURCES["imdb-reviews"](bench.data),
        "news": SOURCES["reuters-news"](bench.data),
        "source code": source_code(),
        "Korean": read_lines(bench.data / "text/wikipedia-ko.txt"),
    }
    chosen = {kind: pick(list(dict.fromkeys(t.strip() for t in lines if t.strip()))) for kind, lines in texts.items()}
    return chosen | {
        "words of a sentence, shuffled": [" ".join(rng.permutation(text.split())) for text in pick(home)],
        "words drawn by frequency": [" ".join(rng.choice(words, length)) for length in lengths],
        "words drawn from the vocabulary": [" ".join(rng.choice(vocabulary, length)) for length in lengths],
    }


UNKNOWN = (0.0, 0.1, 0.2, 0.3, 1 / 3, 0.4, 0.5, 0.7, 1.0)  # shares of unknown words
WORD = re.compile(r"[^\W\d_]+")
LETTERS = [chr(number) for number in range(0x0C05, 0x0C3A) if chr(number).isalpha()]  # Telugu


def unknown_words(bench: Bench, sentences: int = 1000, seed: int = 0) -> Iterator[Row]:
    """False matches at a threshold for 1 % of unchanged text, and ranking, if a share of the words is unknown."""
    rng, embed = np.random.default_rng(seed), bench.encoder.vectors
    texts = {source: bench.sample(source, sentences, sentences, seed) for source in ("STS-B", "quora", HOME)}
    pairs = read_pairs(bench.data / "sts/stsb/test.tsv")
    graded = [*pairs.left[:sentences], *pairs.right[:sentences]]
    thresholds: dict[str, float] = {}
    for share in UNKNOWN:
        row: Row = {"unknown": share}
        for source, own in texts.items():
            unit = normalized(embed([replaced(text, share, rng) for text in own]))
            cosines = (unit @ unit.T)[np.triu_indices(len(own), 1)]
            threshold = thresholds.setdefault(source, float(np.quantile(cosines, 0.99)))
            row[f"{source}, %"] = 100 * float(np.mean(cosines >= threshold))
        left, right = np.split(embed([replaced(text, share, rng) for text in graded]), 2)
        yield row | {"Spearman": float(spearmanr(cosine(left, right), pairs.gold[:sentences]).statistic)}


def replaced(text: str, share: float, rng: np.random.Generator) -> str:
    """The text with a share of its words, chosen at random, replaced by random words of two to eight Telugu letters."""
    count = len(WORD.findall(text))
    chosen = iter(rng.permutation(count) < round(share * count))
    return WORD.sub(
        lambda word: "".join(rng.choice(LETTERS, rng.integers(2, 9))) if next(chosen) else word.group(), text
    )
