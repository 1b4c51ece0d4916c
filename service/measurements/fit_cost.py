"""The time of a calibration beyond embedding its sentences."""

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from service.adapters.domains.store import DomainStore
from service.adapters.encoder.offline import open_texts
from service.adapters.encoder.store import EncoderArtifact
from service.core.jobs.job import JobRequest
from service.measurements.sources import HOME, Progress, sample
from service.modelling.calibration.job import CalibrationInput, calibrate_job

MOST = 0.25  # of the time that embedding the sentences alone takes


@dataclass(frozen=True)
class Result:
    """Seconds of embedding the sentences alone and of the whole job, taken in turns."""

    sentences: int
    method: str
    embedding: list[float]
    job: list[float]
    stages: dict[str, float]  # of the last job

    @property
    def overhead(self) -> float:
        """Median over the rounds of what the job takes longer, as a share of embedding the sentences."""
        return float(np.median([job / alone - 1 for alone, job in zip(self.embedding, self.job, strict=True)]))

    @property
    def kept(self) -> bool:
        return self.overhead <= MOST


def measure(data: Path, artifact: EncoderArtifact, sentences: int, rounds: int, progress: Progress) -> Result:
    """`auto` on Wikipedia sentences, without labels; every round embeds anew."""
    texts = sample(data, HOME, sentences, least=sentences)
    encode = open_texts(artifact)
    encode(texts[:256])  # the session's first runs are slower
    request = JobRequest(domain="cost", encoder=artifact.digest, encoder_id=artifact.id)
    alone, whole = [], []
    with TemporaryDirectory() as folder:
        for number in range(rounds):
            start = time.perf_counter()
            encode(texts, lambda done: progress(f"embedding {number + 1}", done))  # noqa: B023 - called at once
            alone.append(time.perf_counter() - start)
            start = time.perf_counter()
            result = calibrate_job(
                request, CalibrationInput(texts), artifact, DomainStore(Path(folder)), progress, threads=0
            )
            whole.append(time.perf_counter() - start)
    return Result(sentences, result.fitted.method, alone, whole, result.report["duration_seconds"])
