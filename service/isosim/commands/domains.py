"""`isosim domains`: list domains and versions, and change them by the same rules as the API."""

import contextlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from isosim.commands.client import Server, asking, pinned
from isosim.commands.shared import (
    AsJson,
    EncoderId,
    Store,
    Yes,
    confirmed,
    domain_store,
    encoder_of,
    stored,
)
from isosim.commands.terminal import EPILOG, answer, complain, print_json, show
from isosim.encoders.store import EncoderStore
from isosim.errors import InvalidInput, UnknownDomain
from isosim.scoring.advice import GALLERY, rounded
from isosim.scoring.calibration import DomainRef
from isosim.store.blobs import Blobs, opened, remote
from isosim_client import Client, Domain

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Domains and their versions. Without a subcommand, list them.",
    epilog=EPILOG,
)

Name = Annotated[str, typer.Argument(help="a domain")]
Number = Annotated[int, typer.Argument(help="number of a version", min=1)]
COLUMNS = ("domain", "version", "alias", "method", "encoder", "sentences", "created", "thresholds")
DIGITS = 12  # of an encoder's digest
UNREADABLE = "unreadable"  # shown instead of an alias; the reason is printed to stderr
NOT_JUDGED = {
    "out_of_domain": "whether a text belongs to the domain (needs the encoder)",
    "recognition": "whether sentences are recognized after a change of capitals and punctuation (needs the encoder)",
    "rawness": "how much the vectors depend on the surface of sentences (needs the texts)",
}


@app.callback()
def domains(
    context: typer.Context,
    server: Server = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Domains and their versions. Without a subcommand, list them."""
    given = {"server": server, "model_store": model_store, "encoder": encoder, "as_json": as_json}
    if context.invoked_subcommand is None:
        list_domains(**given)
        return
    # Options before the subcommand also apply to it.
    context.default_map = {context.invoked_subcommand: {name: value for name, value in given.items() if value}}


@app.command("list", epilog=EPILOG)
@asking
def list_domains(client: Client, as_json: AsJson = False) -> None:
    """List all versions, and which of them are champions for the encoder."""
    rows, after = [], ""
    while page := client.domains(after=after):
        rows += [row for domain in page for row in rows_of(domain)]
        after = page[-1].domain
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["thresholds"] = "; ".join(f"{name}: {said(target)}" for name, target in row["thresholds"].items())
    show(COLUMNS, [list(row.values()) for row in rows])


def said(target: Mapping[str, float]) -> str:
    """A saved target as text, like `fmr 0.01`."""
    return ", ".join(f"{name} {value:g}" for name, value in target.items())


def rows_of(domain: Domain) -> list[dict[str, Any]]:
    """One row for each version of a domain, with its alias; the champion's row has the saved thresholds."""
    for why in domain.unreadable:
        complain(f"{domain.domain}: {why}")
    rows = [
        {
            "domain": domain.domain,
            "version": one.version,
            "alias": alias_of(one.version, domain),
            "method": one.method,
            "encoder": one.encoder[:DIGITS],
            "sentences": one.sentences,
            "created": one.created,
            "thresholds": domain.thresholds if one.version == domain.champion else {},
        }
        for one in domain.versions
    ]
    if domain.unreadable:
        unknown: dict[str, Any] = dict.fromkeys(COLUMNS)
        rows.append(unknown | {"domain": domain.domain, "alias": UNREADABLE, "thresholds": {}})
    return rows


def alias_of(version: int, domain: Domain) -> str:
    return "champion" if version == domain.champion else "previous" if version == domain.previous else ""


@app.command("show", epilog=EPILOG)
@asking
def show_version(
    client: Client,
    domain: Annotated[str, typer.Argument(help="name, name@3 or name@previous")],
    as_json: AsJson = False,
) -> None:
    """Show a version: its method, the reason for it, and what its report says; --json has all of the report."""
    name, number, _ = pinned(client, domain)
    version, alias = client.version(name, number), alias_of(number, client.domain(name))
    if as_json:
        print_json(vars(version) | {"alias": alias or None})
        return
    print(f"{name}@{number}{f' ({alias})' if alias else ''}: {version.method}")
    print_report(version.report)
    if "promotion" in version.report:
        print(f"  promotion: {version.report['promotion']}")
    print(f"  made: {version.created}, for encoder {version.encoder[:DIGITS]}")
    print_precisions(version.report)


def reason_of(report: Mapping[str, Any]) -> str:
    """Why a version has its method."""
    rule, method = report["evidence"], report["method"]
    if report["asked"] != "auto":
        return f"method {report['asked']} was asked for"
    if rule is None:
        return "scores stay raw cosines, because only texts show whether the encoder needs a correction"
    if rule["surface"] is None:
        return "scores stay raw cosines, because the encoder gives most sentences the same vector"
    seen = f"rawness {rule['rawness']:.2f}, from {rule['sentences']:,} sentences"
    if rule["recognition"] is not None:
        seen += f"; {rule['recognition']:.0%} are recognized after a change of capitals and punctuation"
    if method.startswith("soft:"):
        return f"the vectors depend too much on the surface of sentences ({seen})"
    if method != "identity" or (rule["strength"] > 0 and report["candidates"]):
        return f"it ranks the labelled pairs best, or nearly so ({seen})"
    return f"scores stay raw cosines, because nothing speaks for a correction ({seen})"


def facts_of(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a version's report says, as (name, text); missing facts are left out."""
    if "posted" in report:
        yield "sentences", f"{report['sentences']:,} distinct of {report['posted']:,}"
    used, distinct = report.get("sentences", 0), report.get("distinct", 0)
    if used < distinct:
        yield "from", f"{used:,} of {distinct:,} distinct {'vectors' if report['vectors_sha256'] else 'sentences'}"
    if "evidence" in report:
        yield "why", reason_of(report)
    for what in report.get("not_judged", ()):
        yield "not judged", NOT_JUDGED[what]
    if count := report.get("unreadable"):
        yield "left out", f"{count:,} distinct sentences of which the encoder's vocabulary contains no token"
    if labels := report.get("labels"):
        yield from facts_of_labels(labels)
    reference = report.get("reference") or {}
    if smallest := reference.get("smallest_rate"):
        yield "smallest false-match rate that a threshold reaches", f"{rounded(smallest):g}"
    if "threshold_at_1_percent" in reference and (smallest or 0) <= 0.01:
        low, high = reference["interval_at_1_percent"]
        at = f"similarity ≥ {reference['threshold_at_1_percent']:.4f} (95 % interval {low:.4f} to {high:.4f})"
        yield "1 % false", f"{at}, from {reference['pairs']:,} random pairs"
    if not reference:
        yield "1 % false", "no reference distribution: calibrate the domain with texts"
    if repeated := report.get("repeated"):
        at = ", ".join(map(str, repeated["groups"][0]["lines"]))
        shared = f"{repeated['texts']:,} different texts share {repeated['vectors']:,} vectors"
        yield "repeated", f"{shared}: the encoder cannot tell them apart; for example sentences {at} (from 1)"
    if report.get("domain_test"):
        yield "flags", "out_of_domain, for texts unlike the domain's own"


def facts_of_labels(labels: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was learnt from labelled pairs: their number, the share of matches, and pairs that were left out."""
    share = f"mean grade {labels['mean_label']:.2f} (0–1)" if labels["graded"] else f"{labels['positives']:.1%} matches"
    yield "labels", f"{labels['posted']:,} read, {labels['pairs']:,} distinct pairs used, {share}"
    if both := labels.get("contradictions"):
        first = "; ".join(" and ".join(map(str, numbers)) for numbers in both["first"])
        more = "; …" * (both["pairs"] > len(both["first"]))
        yield (
            "left out",
            f"{both['pairs']:,} pairs that are labelled both 0 and 1 (labels {first}{more}, counted from 1, without "
            "header and blank rows)",
        )
    if labels.get("unreadable"):
        yield "left out", f"{labels['unreadable']:,} pairs whose text has no token that the encoder knows"
    if labels.get("notice"):
        yield "notice", labels["notice"]


def print_report(report: Mapping[str, Any]) -> None:
    for what, value in facts_of(report):
        print(f"  {what}: {value}")


def print_precisions(report: Mapping[str, Any]) -> None:
    """Prints precision, recall and false alarms at several thresholds, if the version learnt from labels."""
    rows = (report.get("labels") or {}).get("table")
    if not rows:
        return
    show(
        (
            "precision",
            "95 % interval",
            "similarity ≥",
            "recall",
            "95 % interval",
            "false-match rate",
            f"alarms among {GALLERY:,}",
        ),
        [
            (
                f"{row['precision']:g}",
                "{:.2f} to {:.2f}".format(*row["precision_interval"]) if "precision_interval" in row else "",
                f"{row['similarity']:.4f}",
                f"{row['recall']:.2f}",
                "{:.2f} to {:.2f}".format(*row["recall_interval"]),
                f"{row['false_match_rate']:.2g}",
                f"{row['false_match_rate'] * GALLERY:.3g}",
            )
            for row in rows
        ],
        head=True,
    )


Without = Annotated[
    list[str] | None,
    typer.Option(help="a saved threshold that the version may make unreachable; may be repeated"),
]


@app.command(epilog=EPILOG)
@asking
def promote(
    client: Client,
    domain: Name,
    version: Number,
    yes: Yes = False,
    without: Without = None,
    as_json: AsJson = False,
) -> None:
    """Make a version the champion, after loading and verifying it."""
    seen = client.domain(without_version(domain))
    confirmed(f"Make {domain}@{version} the champion (now: {called(domain, seen.champion)})?", yes=yes)
    say(client.promote(domain, version, without=without or (), seen=seen), as_json=as_json)


@app.command(epilog=EPILOG)
@asking
def rollback(
    client: Client,
    domain: Name,
    yes: Yes = False,
    without: Without = None,
    as_json: AsJson = False,
) -> None:
    """Swap the champion and the previous version."""
    seen = client.domain(without_version(domain))
    if seen.previous is not None:
        question = f"Make {domain}@{seen.previous} the champion (now: {called(domain, seen.champion)})?"
        confirmed(question, yes=yes)
    say(client.rollback(domain, without=without or (), seen=seen), as_json=as_json)


@app.command(epilog=EPILOG)
@asking
def delete(
    client: Client,
    domain: Name,
    version: Annotated[
        int | None,
        typer.Argument(help="the version to delete; default: the whole domain", min=1),
    ] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete a version, or a domain with all its versions, for good; version numbers are never reused."""
    if version is None:
        delete_domain(client, without_version(domain), yes=yes, as_json=as_json)
        return
    seen = client.domain(without_version(domain))
    client.version(domain, version)  # raises an error if there is no such version
    confirmed(f"Delete {domain}@{version} for good?", yes=yes)
    client.delete_version(domain, version, seen=seen)
    left = [one.version for one in seen.versions if one.version != version]
    facts = {"domain": domain, "deleted": version, "versions": left}
    answer(facts, f"{domain}@{version} is deleted", as_json=as_json)


def delete_domain(client: Client, domain: str, *, yes: bool, as_json: bool) -> None:
    """Deletes a domain; may be repeated. Servers notice the deletion within 2 s, workers at their next heartbeat."""
    confirmed(f"Delete {domain} with all its versions for good, and cancel its calibrations?", yes=yes)
    cancelled = [job.id for job in client.jobs() if job.domain == domain and not job.ended]
    client.delete_domain(domain)
    facts = {"domain": domain, "deleted": True, "versions": [], "cancelled": cancelled}
    text = "\n".join([f"{domain} is deleted", *(f"  calibration {job} is cancelled" for job in cancelled)])
    answer(facts, text, as_json=as_json)


@app.command(epilog=EPILOG)
def history(
    domain: Name,
    limit: Annotated[int, typer.Option(min=1, help="maximum number of changes")] = 100,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show who changed what about a domain and when, newest first; also of a deleted domain."""
    store = domain_store(stored(model_store=model_store))
    if not store.was_there(domain):
        raise UnknownDomain(domain)
    entries = [entry.facts for entry in itertools.islice(store.history(domain), limit)]
    if as_json:
        print_json(entries)
        return
    columns = ("time", "what", "subject", "from", "to", "by", "job", "request")
    show(columns, [[entry[name] for name in columns] for entry in entries])


@app.command("export", epilog=EPILOG)
def export_archive(
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            help="the tar file to write, in a folder or a bucket (s3://…); after a final / it is named by the time",
        ),
    ],
    domain: Annotated[
        str | None,
        typer.Argument(help="a domain with all its versions (name), or one version (name@3, name@previous)"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="all domains")] = False,
    model_store: Store = None,
    encoder: EncoderId = None,
) -> None:
    """Write domains to one file, with versions, champions and saved thresholds, for backups and other servers."""
    from isosim.domains.archive import export_domains, selected  # noqa: PLC0415 - ONNX Runtime

    if (domain is None) != every:
        raise typer.BadParameter("give one of them", param_hint="DOMAIN or --all")
    place, name = archive_at(output)
    with contextlib.suppress(FileNotFoundError):
        place.stamp(name)
        raise InvalidInput(f"{output} exists already, and an export overwrites no file; choose another name")
    settings = stored(model_store=model_store, encoder=encoder)
    store = domain_store(settings)
    if domain is None:
        wanted: Iterable[tuple[str, list[int]]] = ((name, sorted(store.read(name).versions)) for name in store.names())
    else:
        wanted = [selected(store, domain, encoder_of(settings).digest if "@" in domain else "")]
    with tempfile.NamedTemporaryFile() as out:
        domains, count = export_domains(store, wanted, out)  # type: ignore[arg-type]
        size = out.tell()
        out.flush()
        place.upload(name, Path(out.name))
    said = f"{count} version{'' if count == 1 else 's'} of {domains} domain{'' if domains == 1 else 's'}"
    print(f"{output.removesuffix(name)}{name}: {said}, {size:,} bytes")


def archive_at(address: str) -> tuple[Blobs, str]:
    """The folder or bucket of an archive, and its name in there; without a name, one after the time."""
    folder, slash, name = address.rpartition("/")
    place = opened(folder if remote(address) else Path(folder + slash or "."))
    return place, name or f"domains-{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.tar"


@app.command("import", epilog=EPILOG)
def import_archive(
    file: Annotated[
        str, typer.Argument(help="an archive written by isosim domains export: a file, or an address like s3://…")
    ],
    rename: Annotated[
        str | None, typer.Option("--as", help="new name of the domain, if the archive holds only one")
    ] = None,
    promote: Annotated[
        bool, typer.Option("--promote", help="make the archive's champions the champions here, as after a loss")
    ] = False,
    yes: Yes = False,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Add the versions of an archive. Overwrites nothing, and may be repeated."""
    from isosim.domains.archive import import_domains  # noqa: PLC0415 - ONNX Runtime

    settings = stored(model_store=model_store)
    store = domain_store(settings)
    encoders = EncoderStore.at(settings.model_store, settings.seed_store)
    if promote:
        confirmed(f"Make the champions in {file} the champions here?", yes=yes)
    place, name = archive_at(file)
    try:
        with place.files("", [name]) as folder, (folder / name).open("rb") as content:
            imported = import_domains(
                content, store, encoders, keep=settings.keep_versions, rename=rename, promote=promote
            )
    except FileNotFoundError:
        there = [entry.key for entry in place.list("") if "/" not in entry.key][-5:]
        raise InvalidInput(f"there is no archive {file}; the last ones there: {', '.join(there) or 'none'}") from None
    for reason in imported.left_out:
        complain(f"not imported: {reason}")
    if as_json:
        print_json(imported)
        return
    for one in imported.versions:
        is_there = "is there already" if one.there else "is added"
        was = "" if one.was is None else f"; {one.was} in the archive"
        print(f"{one.source} {is_there}: {one.domain}@{one.version}, encoder {one.encoder}{was}")
        name = f"{one.domain}@{one.version}"
        if name in imported.promoted:
            print(f"  {name} is the champion")
        elif one.was == "champion" and not promote:
            print(
                f"  to make it the champion: isosim domains promote {one.domain} {one.version} --encoder {one.encoder}"
            )
    for name in imported.thresholds:
        print(f"threshold {name} is saved")
    for name in imported.kept:
        print(f"threshold {name} is not imported: its name is taken or invalid, or the domain has too many thresholds")


def without_version(domain: str) -> str:
    """The argument, a domain's name. Raises InvalidInput if it includes a version."""
    if DomainRef.parse(domain).name != domain:
        raise InvalidInput(f"domain {domain!r}: give the name without a version, which is a separate argument")
    return domain


def called(name: str, version: int | None) -> str:
    return f"{name}@{version}" if version else "none"


def say(domain: Domain, *, as_json: bool) -> None:
    name = domain.domain
    facts = {"domain": name, "champion": domain.champion, "previous": domain.previous}
    text = f"{name}: champion {called(name, domain.champion)}, previous {called(name, domain.previous)}"
    answer(facts, text, as_json=as_json)
