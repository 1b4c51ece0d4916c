"""Does an artifact tell whether a sentence was posted? The attack of whoever holds a version's files.

A sentence counts as posted the more usual the version finds it: small latents, a high p-value of the domain test.
Posted sentences against others of the same source, so that only the fit itself can tell them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from service.modelling import domain_test
from service.modelling.linear import Spectrum
from service.modelling.methods import fit
from service.modelling.quality.sources import SOURCES, Encoder, Progress, sample

Doubles = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]

SIZES = (500, 2000, 10_000)
METHODS = ("whitening", "soft", "tempered", "flow")
OTHERS = 5000
FALSE_ALARMS = 0.01
SMALLEST_TEST = 1000  # sentences from which on a version has a domain test


@dataclass(frozen=True)
class Result:
    """How well posted sentences are told from others: 0.5 and 0.01 are guessing."""

    source: str
    sentences: int  # posted
    told_by: str
    auroc: float
    detected: float  # share of the posted ones found at 1 % of the others taken for posted


def told(posted: Doubles, others: Doubles) -> tuple[float, float]:
    """AUROC, and the share detected at 1 % false alarms; higher values speak for having been posted."""
    truth = np.concatenate([np.ones(len(posted)), np.zeros(len(others))])
    auroc = float(roc_auc_score(truth, np.concatenate([posted, others])))
    return auroc, float((posted > np.quantile(others, 1 - FALSE_ALARMS)).mean())


def measure(data: Path, encode: Encoder, sources: Sequence[str], progress: Progress, seed: int = 0) -> list[Result]:
    results = []
    for source in sources:
        largest = max(SIZES)
        texts = sample(data, source, largest + OTHERS, least=largest + OTHERS, seed=seed)
        vectors, tokens = encode(texts, lambda done, source=source: progress(source, done))  # type: ignore[misc]
        others, other_tokens = vectors[largest:], tokens[largest:]
        for size in SIZES:
            posted, rng = vectors[:size], np.random.default_rng(seed)
            for method in METHODS:
                latents = fit(method, posted, others[:0], seed, spectrum=Spectrum.of(posted.astype(np.float64)))
                results.append(Result(source, size, method, *told(usual(latents(posted)), usual(latents(others)))))
            if size >= SMALLEST_TEST:
                shuffled = encode(domain_test.shuffled_copies(texts[:size], domain_test.SHUFFLED, rng))[0]
                test = domain_test.fit(posted, tokens[:size], shuffled, rng)
                p = [test.judge(*given).p_values for given in ((posted, tokens[:size]), (others, other_tokens))]
                results.append(Result(source, size, "domain test", *told(p[0], p[1])))
    return results


def usual(latents: Vectors) -> Doubles:
    """−‖z‖²: the likelier, the nearer to the middle."""
    lengths: Doubles = -np.square(latents.astype(np.float64)).sum(1)
    return lengths


__all__ = ["SIZES", "SOURCES", "Result", "measure"]
