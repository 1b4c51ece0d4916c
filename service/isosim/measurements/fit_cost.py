"""Measures how much longer a calibration takes than only embedding its sentences."""

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact
from isosim.fitting.job import CalibrationInput, calibrate_job
from isosim.jobs.job import JobRequest
from isosim.jobs.offline import open_texts
from isosim.measurements.sources import HOME, Progress, sample
from isosim.store.blobs import Folder

MOST = 0.25  # promised maximum of `overhead`


@dataclass(frozen=True)
class Result:
    """Seconds to embed only the sentences (`embedding`), and seconds of the whole job (`job`); one value per round."""

    sentences: int
    method: str
    embedding: list[float]
    job: list[float]
    stages: dict[str, float]  # stage of the last job -> seconds

    @property
    def overhead(self) -> float:
        """Extra time of the job, as a share of the time to embed only the sentences. Median over the rounds."""
        return float(np.median([job / alone - 1 for alone, job in zip(self.embedding, self.job, strict=True)]))

    @property
    def kept(self) -> bool:
        return self.overhead <= MOST


def measure(data: Path, artifact: EncoderArtifact, sentences: int, rounds: int, progress: Progress) -> Result:
    """In each round, embeds Wikipedia sentences, then runs a whole job with the method `auto`, and times both."""
    texts = sample(data, HOME, sentences, least=sentences)
    encode = open_texts(artifact)
    encode(texts[:256])  # warm-up: the first runs are slower
    request = JobRequest(domain="cost", encoder=artifact.digest, encoder_id=artifact.id)
    alone, whole = [], []
    with TemporaryDirectory() as folder:
        for number in range(rounds):
            start = time.perf_counter()
            encode(texts, lambda done: progress(f"embedding {number + 1}", done))  # noqa: B023 - called at once
            alone.append(time.perf_counter() - start)
            start = time.perf_counter()
            result = calibrate_job(
                request, CalibrationInput(texts), artifact, DomainStore(Folder(Path(folder))), progress, threads=0
            )
            whole.append(time.perf_counter() - start)
    return Result(sentences, result.fitted.method, alone, whole, result.report["duration_seconds"])
