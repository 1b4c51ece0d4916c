"""`isosim calibrate`, `label` and `threshold`: a calibration from files, without a server."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.commands.shared import AsJson, EncoderId, Store, bar, need_training, out, settings_with
from service.core.advice import SMALLEST_FMR, advise
from service.core.calibration import DomainRef
from service.core.errors import InvalidInput, NotFound
from service.core.jobs import METHODS, NORMALIZATIONS, PROMOTIONS, JobRequest, LabelledPair
from service.settings import Settings

Labels = Annotated[
    Path | None, typer.Option(help="labelled pairs: label, sentence, sentence in each line, by tabs", exists=True)
]


def calibrate(
    file: Annotated[Path, typer.Argument(help="text, one sentence a line", exists=True, dir_okay=False)],
    domain: Annotated[str, typer.Option(help="the domain to calibrate")],
    method: Annotated[str, typer.Option(help=", ".join(METHODS))] = "auto",
    promote: Annotated[str, typer.Option(help=", ".join(PROMOTIONS))] = "if_better",
    seed: int = 0,
    labels: Labels = None,
    normalization: Annotated[str, typer.Option(help=", ".join(NORMALIZATIONS))] = "none",
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Fit a calibration to a file of sentences, here and now."""
    if DomainRef.parse(domain) != DomainRef(domain):
        raise InvalidInput(f"--domain {domain!r}: a calibration makes a new version; name the domain alone")
    check_choices(
        method=(method, METHODS), promote=(promote, PROMOTIONS), normalization=(normalization, NORMALIZATIONS)
    )
    texts = [line for line in (raw.strip() for raw in file.read_text(encoding="utf-8-sig").split("\n")) if line]
    asked = {"method": method, "promote": promote, "seed": seed, "normalization": normalization}
    fit_here(domain, asked, texts, labels, model_store, encoder, as_json=as_json)


def label(
    labels: Annotated[Path, typer.Argument(help="label, sentence, sentence in each line, by tabs", exists=True)],
    domain: Annotated[str, typer.Option(help="the domain that gets probabilities: name or name@3")],
    promote: Annotated[str, typer.Option(help=", ".join(PROMOTIONS))] = "always",
    seed: int = 0,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Learn probabilities from labelled pairs; makes a new version with the same map and scale."""
    check_choices(promote=(promote, PROMOTIONS))
    settings = settings_with(model_store=model_store, encoder=encoder)
    ref, version, manifest = stored_version(settings, domain)
    champion = DomainStore(settings.model_store).aliases(ref.name, manifest["encoder"]["digest"]).champion
    asked = {
        "method": manifest["method"], "promote": promote, "seed": seed, "base": version, "champion": champion,
    }  # fmt: skip
    fit_here(ref.name, asked, [], labels, model_store, encoder, as_json=as_json)


def check_choices(**given: tuple[str, Sequence[str]]) -> None:
    for name, (value, known) in given.items():
        if value not in known:
            raise InvalidInput(f"--{name} {value!r}: one of {', '.join(known)}")


def fit_here(
    domain: str,
    asked: dict[str, Any],
    texts: list[str],
    labels: Path | None,
    model_store: Path | None,
    encoder: str | None,
    *,
    as_json: bool,
) -> None:
    """Runs a calibration in this process, with a progress bar, and says what came out."""
    need_training()
    settings = settings_with(model_store=model_store, encoder=encoder)
    from service.modelling.job import Posted, calibrate_job  # noqa: PLC0415
    from service.modelling.quality.sources import read_pairs  # noqa: PLC0415

    artifact = EncoderStore(settings.model_store).find(settings.encoder)
    domains = DomainStore(settings.model_store)
    pairs: list[LabelledPair] = []
    if labels is not None:
        found = read_pairs(labels)
        pairs = [(a, b, float(gold)) for a, b, gold in zip(found.left, found.right, found.gold, strict=True)]
    wanted = JobRequest(domain, artifact.digest, artifact.id, sentences=len(texts), labels=len(pairs), **asked)
    with bar("starting") as progress:
        result = calibrate_job(wanted, Posted(texts, pairs), artifact, domains, progress, threads=settings.threads)
    version, promoted, why = result.publish(domains)
    domains.prune(domain, settings.keep_versions)
    facts = {"domain": domain, "version": version, "promoted": promoted, "promotion": why, "report": result.report}
    if as_json:
        print(orjson.dumps(facts).decode())  # a NaN becomes null, as over HTTP
        return
    out.print(f"{domain}@{version}: {result.report['method']}", markup=False)
    out.print(f"  why: {result.report['reason']}", markup=False)
    out.print(f"  {'promoted' if promoted else 'not promoted'}: {why}", markup=False)


def stored_version(settings: Settings, domain: str) -> tuple[DomainRef, int, dict[str, Any]]:
    """The version a reference means for the encoder of the settings, with its manifest.

    Raises:
        NotFound: no such version. InvalidInput: it was made for another encoder.
    """
    artifact = EncoderStore(settings.model_store).find(settings.encoder)
    domains = DomainStore(settings.model_store)
    ref = DomainRef.parse(domain)
    aliases = domains.aliases(ref.name, artifact.digest)
    version = {"champion": aliases.champion, "previous": aliases.previous}.get(str(ref.version), ref.version)
    if version is None:
        raise NotFound(f"domain {ref.name!r} has no {ref.version} for encoder {artifact.id}")
    manifest = domains.manifest(ref.name, int(version))
    if manifest["encoder"]["digest"] != artifact.digest:
        raise InvalidInput(f"{ref.name}@{version} was made for encoder {manifest['encoder']['id']}")
    return ref, int(version), manifest


def threshold(
    domain: Annotated[str, typer.Argument(help="name, name@3 or name@previous")],
    fmr: Annotated[
        float | None, typer.Option(min=SMALLEST_FMR, max=1, help="false-match rate among random pairs")
    ] = None,
    precision: Annotated[float | None, typer.Option(min=0, max=1, help="where labels were given")] = None,
    raw: Annotated[bool, typer.Option(help="for the frozen encoder's cosine")] = False,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Which similarity to ask for: for a false-match rate, or for a precision."""
    if (fmr is None) == (precision is None):
        raise InvalidInput("--fmr or --precision: give one of them")
    settings = settings_with(model_store=model_store, encoder=encoder)
    ref, version, _ = stored_version(settings, domain)
    model = DomainStore(settings.model_store).load(ref.name, version).model
    advice = advise(model, ref.name, fmr=fmr, precision=precision, raw=raw)
    if as_json:
        print(json.dumps({"domain": ref.name, "version": version, **vars(advice)}))
        return
    low, high = advice.interval
    beyond = ", extrapolated beyond what they can count" if advice.extrapolated else ""
    out.print(
        f"{ref.name}@{version}: similarity ≥ {advice.similarity:.4f} "
        f"(95 % interval {low:.4f} to {high:.4f}; from {advice.pairs:,} pairs{beyond})",
        markup=False,
    )
