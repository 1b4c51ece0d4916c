"""A calibration of a corpus: a sample of it, embedded by many engines, then the fit that every calibration gets."""

from dataclasses import dataclass, replace
from typing import Any

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.adapters.object_storage import remote
from service.bulk.cluster import cluster
from service.bulk.inputs import check_columns, cut, form_of, reader_of, sources_of
from service.bulk.planning import addressed, device_of
from service.bulk.run import Report, Running
from service.bulk.sample import SCAN_ROWS, sample
from service.bulk.shipping import packed
from service.bulk.spread_encoder import SpreadEncoder
from service.core.jobs import JobRequest
from service.core.requirements import check_sentences
from service.modelling.job import Posted, calibrate_job


@dataclass(frozen=True)
class Corpus:
    """Where the texts are."""

    input: str
    column: str
    form: str | None
    delimiter: str | None
    longest: int  # characters of a text


def fit_sample(
    corpus: Corpus,
    count: int,
    domain: str,
    asked: dict[str, Any],
    encoder: str,
    device: str,
    how: Running,
    threads: int,
    report: Report,
) -> dict[str, Any]:
    """Samples, embeds, fits and publishes; the version, whether it was promoted and why, and its report.

    Raises:
        EmptyInput, InvalidInput: the corpus has too few distinct texts for the method.
    """
    place, sources = sources_of(corpus.input)
    form = form_of(sources, corpus.form)
    tabbed = form == "csv" and sources[0].path.lower().endswith(".tsv")
    delimiter = corpus.delimiter or ("\t" if tabbed else ",")
    reader = reader_of(form, delimiter)
    check_columns(reader, place, sources, [corpus.column], [])
    parts = cut(reader, place, sources, SCAN_ROWS)
    artifact = EncoderStore(how.store).find(encoder)
    domains = DomainStore(how.store)
    generation = domains.generation(domain)
    with cluster(how.address, how.local_cores) as ray:
        texts, unusable = sample(
            ray, [addressed(place, source) for source in sources], parts, form=form, delimiter=delimiter,
            column=corpus.column, longest=corpus.longest, seed=asked["seed"], count=count, how=how, report=report,
        )  # fmt: skip
        check_sentences(asked["method"], artifact.spec.dim, len(texts))
        shipped = None
        if how.address is not None and not remote(how.store):
            shipped = [ray.put(packed(how.store, artifact.id, artifact.digest, domain, 0))]
        spread = SpreadEncoder(ray, artifact, how, shipped, gpu=device_of(device) == "gpu")
        wanted = JobRequest(domain, artifact.digest, artifact.id, sentences=len(texts), generation=generation, **asked)
        result = calibrate_job(wanted, Posted(texts), artifact, domains, report, threads=threads, encode=spread)
    rows = sum(part.rows for part in parts)
    drawn = {"rows": rows, "unusable": unusable, "texts": len(texts), "asked": count}
    result = replace(result, report=result.report | {"sample": drawn})
    version, promoted, why = result.publish(domains)
    return {"domain": domain, "version": version, "promoted": promoted, "promotion": why, "report": result.report}
