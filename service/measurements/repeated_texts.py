"""Do thresholds keep their false-match rate where texts repeat? Mails that begin with one notice have one vector."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.core.arrays import Vectors
from service.core.errors import InvalidInput
from service.core.scoring.advice import Target, advise
from service.core.scoring.calibration import DomainModel
from service.measurements.sources import HOME, Encoder, Progress, sample
from service.measurements.thresholds import false_match_rate
from service.modelling.calibration import reference

SENTENCES = 744
OTHERS = 2000  # sentences of the same kind that the reference has not seen
SHARES = (0.0, 0.05, 0.1, 0.2)  # of the texts that begin with the notice
RATES = (0.01, 0.003, 0.001)
NOTICE = 30  # sentences, more than the 256 tokens that the default encoder reads
MAILS = 32  # embedded: they have the same tokens, and vectors that differ by rounding
FACTOR = 1.25  # that a counted rate may be off by


@dataclass(frozen=True)
class Result:
    """One share of repeated texts and one nominal rate, over draws; a draw that is refused has no rates."""

    share: float
    nominal: float
    refused: int  # draws
    reachable: list[float]  # smallest rate of each draw that any threshold reaches
    counted: list[float]  # among all pairs of the reference's texts
    unseen: list[float]  # among all pairs of other texts with the same share of notices

    @property
    def kept(self) -> bool:
        """Every threshold that was given keeps its rate, and every refusal was right."""
        within = all(1 / FACTOR <= rate / self.nominal <= FACTOR for rate in self.counted)
        return within and (not self.refused or min(self.reachable) > self.nominal / FACTOR)


def measure(folder: Path, encode: Encoder, draws: int, progress: Progress) -> list[Result]:
    """Identity, with the reference that a calibration would make."""
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
    """`plain` and `mails` (N, D) are the sentences without and with the notice."""
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
    """The first so many texts with the notice, the others without."""
    count = round(share * len(plain))
    return np.concatenate([mails[:count], plain[count:]])
