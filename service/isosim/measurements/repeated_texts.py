"""Measures thresholds on sentences mixed with mails that all begin with the same notice.

The notice is longer than the part of a text that the encoder reads. So all mails have the same vector, and all pairs of
mails have the same score (a tie).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isosim.arrays import Vectors
from isosim.errors import InvalidInput
from isosim.fitting import reference
from isosim.measurements.sources import HOME, Encoder, Progress, sample
from isosim.measurements.thresholds import false_match_rate
from isosim.scoring.advice import Target, advise
from isosim.scoring.calibration import DomainModel

SENTENCES = 744
OTHERS = 2000  # number of held-out sentences
SHARES = (0.0, 0.05, 0.1, 0.2)  # shares of mails among the texts
RATES = (0.01, 0.003, 0.001)
NOTICE = 30  # number of sentences in the notice; it is longer than the 256 tokens that the default encoder reads
MAILS = 32  # number of mails to embed; other mails reuse these vectors, because all mails have the same vector
FACTOR = 1.25  # promised maximum of counted rate / nominal rate, and of nominal rate / counted rate


@dataclass(frozen=True)
class Result:
    """Results of several draws with the same share of repeated texts and the same nominal rate.

    If the service refuses to give a threshold in a draw, `counted` and `unseen` have no rate for this draw.
    """

    share: float
    nominal: float
    refused: int  # number of refused draws
    reachable: list[float]  # for each draw, the smallest false-match rate that a threshold can reach
    counted: list[float]  # false-match rates among all pairs of the texts from which the reference was built
    unseen: list[float]  # false-match rates among all pairs of held-out texts, with the same share of mails

    @property
    def kept(self) -> bool:
        """Whether all rates in `counted` are near the nominal rate, and all refusals are justified.

        Refusals are justified if no threshold can reach the nominal rate: in every draw, the smallest rate that a
        threshold can reach must be higher than `nominal / FACTOR`.
        """
        within = all(1 / FACTOR <= rate / self.nominal <= FACTOR for rate in self.counted)
        return within and (not self.refused or min(self.reachable) > self.nominal / FACTOR)


def measure(folder: Path, encode: Encoder, draws: int, progress: Progress) -> list[Result]:
    """Measures the thresholds of the method `identity`, with the reference that a calibration would build."""
    size = SENTENCES + OTHERS
    texts = sample(folder, HOME, size + NOTICE, least=size + NOTICE)
    notice, sentences = " ".join(texts[:NOTICE]), texts[NOTICE:]
    plain, _ = encode(sentences, lambda done: progress(HOME, done / 2))
    mails, _ = encode(
        [f"{notice} {text}" for text in sentences[:MAILS]], lambda done: progress("notices", (1 + done) / 2)
    )
    mails = np.resize(mails, plain.shape)
    return [result for share in SHARES for result in measure_share(share, plain, mails, draws)]


def measure_share(share: float, plain: Vectors, mails: Vectors, draws: int) -> list[Result]:
    """Measures the thresholds for one share of mails. `plain`, `mails` (N, D): vectors of sentences and of mails."""
    results = [Result(share, nominal, 0, [], [], []) for nominal in RATES]
    for draw in range(draws):
        rng = np.random.default_rng(draw)
        order = rng.permutation(len(plain))
        mine, others = order[:SENTENCES], order[SENTENCES:]
        own, unseen = (mixed(plain[rows], mails[rows], share) for rows in (mine, others))
        scale = reference.build(reference.sample_pairs([(own, np.arange(len(own)))], rng), rng)
        for at, result in enumerate(results):
            try:
                threshold = advise(DomainModel(scale), "mails", Target(fmr=result.nominal)).similarity
            except InvalidInput:
                results[at] = Result(**{**vars(result), "refused": result.refused + 1})
            else:
                result.counted.append(false_match_rate(own, threshold))
                result.unseen.append(false_match_rate(unseen, threshold))
            result.reachable.append(scale.smallest_rate)
    return results


def mixed(plain: Vectors, mails: Vectors, share: float) -> Vectors:
    """Vectors (N, D): the first `share` × N rows of `mails`, then `plain` from that row on. `share` is 0–1."""
    count = round(share * len(plain))
    return np.concatenate([mails[:count], plain[count:]])
