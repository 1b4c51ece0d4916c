"""Domains and jobs for the tests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isosim.arrays import Weights
from isosim.domains.domain import Version
from isosim.domains.store import DomainStore, written
from isosim.encoders.store import EncoderArtifact
from isosim.jobs.job import Job, JobRequest, LabelledPair
from isosim.jobs.posted import Posted, Spool
from isosim.jobs.store import JobStore
from isosim.scoring.calibration import DomainModel
from isosim.store.blobs import opened
from tests.text import sentences


def domains_of(store: Path) -> DomainStore:
    return DomainStore(opened(store))


def jobs_of(store: Path) -> JobStore:
    return JobStore(opened(store))


def post_job(jobs: JobStore, request: JobRequest, texts: Iterable[str] = (), **given: Any) -> Job:
    """A queued job, as the API makes it."""
    with Spool() as spool:
        spool.extend(texts)
        return jobs.create(request, spool, [], **given)


def record_of(store: Path, name: str) -> Path:
    """The file of a domain's record, in a folder."""
    return store / "domains" / f"{name}.json"


def files_of(store: Path, name: str, version: int) -> Path:
    """The folder of a version's files, in a folder."""
    return store / "versions" / name / domains_of(store).read(name).version(name, version).upload


def keys_of(store: DomainStore, name: str, number: int) -> list[str]:
    """Keys of the objects that make up a version: the domain's record and the version's files."""
    version = store.read(name).version(name, number)
    return [store.records.key(name), *(f"versions/{name}/{version.upload}/{file}" for file in version.files)]


def copy_version(domains: DomainStore, name: str, number: int, to: str | None = None, *, promote: bool = False) -> int:
    """Publishes a version once more, by default in its own domain and not as champion, and returns its number."""
    with domains.files(name, number) as (version, folder):
        return domains.publish(to or name, folder, replace(version, job=None), promote=lambda _: promote).number


def publish(
    domains: DomainStore,
    name: str,
    encoder: EncoderArtifact,
    model: DomainModel = DomainModel(),  # noqa: B008 - frozen
    weights: Weights | None = None,
    report: Mapping[str, Any] | None = None,
    *,
    promote: bool = True,
    epoch: int | None = None,
    **facts: Any,
) -> int:
    """Publishes a version, by default as champion, and returns its number."""
    stated: dict[str, Any] = {"method": "identity" if weights is None else "whitening", "sentences": 2, "seed": 0}
    version = Version(
        number=0, encoder=encoder.digest, encoder_id=encoder.id, files={}, upload="", created="", **stated | facts
    )
    with written(report or {}, weights, model) as folder:
        return domains.publish(name, folder, version, epoch=epoch, promote=lambda _: promote).number


def calibrate(
    store: Path,
    encoder: EncoderArtifact,
    domain: str,
    method: str = "identity",
    texts: Sequence[str] = (),
    labels: Sequence[LabelledPair] = (),
    **options: Any,
) -> int:
    """A version that is fitted in this process, by default to 400 sentences and as champion; returns its number."""
    from isosim.fitting.job import calibrate_job

    domains, texts = domains_of(store), texts or sentences(400)
    stated: dict[str, Any] = {"promote": "always", "sentences": len(texts)} | options
    request = JobRequest(domain, encoder.digest, encoder.id, method, **stated)
    made = calibrate_job(request, Posted(texts, labels), encoder, domains, lambda *_: None, threads=1)
    return made.publish(domains).version
