"""`isosim domains`: list domains and versions, and change them by the same rules as the API."""

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from isosim.commands.shared import (
    AsJson,
    EncoderId,
    Store,
    Yes,
    confirmed,
    domain_names,
    known,
    stored,
    stored_version,
    version_numbers,
    versions,
)
from isosim.commands.terminal import EPILOG, complain, print_json, show
from isosim.domains.migrations import MigrationStore
from isosim.domains.removal import remove_domain
from isosim.domains.store import Aliases, DomainStore
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import CorruptArtifact, InvalidInput, NotFound, Unavailable, UnknownDomain
from isosim.jobs.store import JobStore
from isosim.scoring.advice import check_lost, lost_targets
from isosim.scoring.calibration import DomainRef
from isosim.settings import Settings

app = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    help="Domains and their versions. Without a subcommand, list them.",
    epilog=EPILOG,
)

Name = Annotated[str, typer.Argument(help="a domain", autocompletion=domain_names)]
Number = Annotated[int, typer.Argument(help="number of a version", min=1, autocompletion=version_numbers)]
COLUMNS = ("domain", "version", "alias", "method", "encoder", "sentences", "created", "thresholds")
UNREADABLE = "unreadable"  # shown instead of an alias; the reason is printed to stderr
CANDIDATE_COLUMNS = ("agreement", "effective_rank", "mean_random_cosine", "hubness", "copies_z", "labelled_score")


@app.callback()
def domains(context: typer.Context, model_store: Store = None, as_json: AsJson = False) -> None:
    """Domains and their versions. Without a subcommand, list them."""
    if context.invoked_subcommand is None:
        list_domains(model_store, as_json)
        return
    # Options before the subcommand also apply to it.
    given = {name: value for name, value in (("model_store", model_store), ("as_json", as_json)) if value}
    context.default_map = {context.invoked_subcommand: given}


@app.command("list", epilog=EPILOG)
def list_domains(model_store: Store = None, as_json: AsJson = False) -> None:
    """List all versions, and which of them are champions."""
    store = DomainStore(stored(model_store=model_store).model_store)
    rows = [row for name in store.domains() for row in rows_of(store, name)]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["thresholds"] = "; ".join(f"{name}: {said(target)}" for name, target in row["thresholds"].items())
    show(COLUMNS, [list(row.values()) for row in rows])


def said(target: Mapping[str, float]) -> str:
    """A saved target as text, like `fmr 0.01`."""
    return ", ".join(f"{name} {value:g}" for name, value in target.items())


def rows_of(store: DomainStore, name: str) -> list[dict[str, Any]]:
    """One row for each version of a domain, with its alias; the champion's row has the saved thresholds."""
    rows = []
    for version in store.versions(name):
        row = {"domain": name, "version": version} | dict.fromkeys(COLUMNS[2:-1]) | {"thresholds": {}}
        try:
            manifest = store.manifest(name, version)
            row |= {
                "method": manifest["method"],
                "encoder": manifest["encoder"]["id"],
                "sentences": manifest.get("sentences"),
                "created": manifest["created"],
            }
            aliases = store.aliases(name, manifest["encoder"]["digest"])
            row["alias"] = alias_of(version, aliases)
            if version == aliases.champion:
                row["thresholds"] = {saved: target.facts for saved, target in aliases.targets.items()}
        except NotFound:
            continue  # another process has deleted the version
        except (Unavailable, OSError) as error:
            row["alias"] = UNREADABLE
            complain(f"{name}@{version}: {error}")
        rows.append(row)
    return rows


def alias_of(version: int, aliases: Aliases) -> str:
    return "champion" if version == aliases.champion else "previous" if version == aliases.previous else ""


@app.command("show", epilog=EPILOG)
def show_version(
    domain: Annotated[str, typer.Argument(help="name, name@3 or name@previous", autocompletion=versions)],
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Show a version: its method, the reason for it, and the candidates that were compared."""
    settings = stored(model_store=model_store, encoder=encoder)
    ref, version, manifest = named(settings, domain)
    store = DomainStore(settings.model_store)
    report = store.report(ref.name, version)
    alias = alias_of(version, store.aliases(ref.name, manifest["encoder"]["digest"]))
    if as_json:
        facts = {key: manifest.get(key) for key in ("method", "encoder", "created", "sentences", "seed", "files")}
        print_json({"domain": ref.name, "version": version, "alias": alias or None, **facts, "report": report})
        return
    print(f"{ref.name}@{version}{f' ({alias})' if alias else ''}: {manifest['method']}")
    for name, value in facts_of(manifest, report):
        print(f"  {name:<12} {value}")
    candidates = report.get("candidates") or []
    if candidates:
        columns = [c for c in CANDIDATE_COLUMNS if any(one["evidence"].get(c) is not None for one in candidates)]
        print()
        show(
            ("candidate", *(column.replace("_", " ") for column in columns)),
            [(one["method"], *(figure(one["evidence"].get(column)) for column in columns)) for one in candidates],
            head=True,
        )


def named(settings: Settings, domain: str) -> tuple[DomainRef, int, dict[str, Any]]:
    """Resolves name, name@3 or name@previous; returns (reference, version, manifest), as `stored_version` does.

    Unlike `stored_version`, accepts name@3 even if that version was made for another encoder.
    """
    ref = known(settings, domain)
    if isinstance(ref.version, int):
        return ref, ref.version, DomainStore(settings.model_store).manifest(ref.name, ref.version)
    return stored_version(settings, domain)


def facts_of(manifest: dict[str, Any], report: dict[str, Any]) -> list[tuple[str, str]]:
    """Facts about a version, from its manifest and report, as (name, text); missing facts are left out."""
    encoder, reference, labels = manifest["encoder"], report.get("reference"), report.get("labels")
    origin = manifest.get("origin")
    facts = [
        ("why", report.get("reason")),
        ("promotion", report.get("promotion")),
        ("encoder", f"{encoder['id']} ({encoder['digest'][:12]})"),
        ("sentences", f"{report['sentences']:,} distinct of {report['posted']:,}" if "posted" in report else None),
        ("unreadable", left_out(report)),
        ("created", manifest["created"]),
        ("came from", None if origin is None else f"{origin['domain']}@{origin['version']}, {origin['imported']}"),
    ]
    if reference is not None and reference.get("smallest_rate", 0) > 0.01:
        facts.append(
            (
                "1 % false",
                f"no threshold reaches 1 %: {reference['smallest_rate']:.2%} of random pairs have the highest score",
            )
        )
    elif reference is not None:
        low, high = reference["interval_at_1_percent"]
        at = f"similarity ≥ {reference['threshold_at_1_percent']:.4f} (95 % interval {low:.4f} to {high:.4f})"
        facts.append(("1 % false", f"{at}, from {reference['pairs']:,} random pairs"))
    else:
        facts.append(("1 % false", "no reference distribution: calibrate the domain with texts"))
    facts.append(("repeated", repetition(report)))
    facts.append(
        (
            "labels",
            None if not labels else f"{labels.get('posted', 0):,} pairs; results include the probability of a match",
        )
    )
    facts.append(("flags", "out_of_domain, for texts unlike the domain's own" if report.get("domain_test") else None))
    return [(name, value) for name, value in facts if value is not None]


def left_out(report: dict[str, Any]) -> str | None:
    count = report.get("unreadable")
    return (
        None
        if not count
        else f"{count:,} distinct sentences left out: the encoder's vocabulary contains none of their tokens"
    )


def repetition(report: dict[str, Any]) -> str | None:
    """Describes the sentences that share a vector, with sentence numbers of the largest group. None: there are none."""
    repeated = report.get("repeated")
    if not repeated:
        return None
    largest = repeated["groups"][0]
    vectors = "one vector" if repeated["vectors"] == 1 else f"{repeated['vectors']:,} vectors"
    listed = ", ".join(map(str, largest["lines"])) + (", …" if largest["texts"] > len(largest["lines"]) else "")
    return (
        f"{repeated['texts']:,} different texts share {vectors}, because the encoder cannot tell them apart; the "
        f"largest group has {largest['texts']:,}: sentences {listed} (counted from 1, without header and blank rows)"
    )


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


Without = Annotated[
    list[str] | None,
    typer.Option(help="a saved threshold that the version may make unreachable; may be repeated"),
]


@app.command(epilog=EPILOG)
def promote(
    domain: Name,
    version: Number,
    yes: Yes = False,
    without: Without = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Make a version the champion, after loading and verifying it."""
    settings = stored(model_store=model_store, encoder=encoder)
    store, artifact, name = change(settings, domain)
    expected = store.aliases(name, artifact.digest)
    servable(store, artifact, name, version)
    check_targets(store, name, version, expected, without)
    confirmed(f"Make {name}@{version} the champion (now: {called(name, expected.champion)})?", yes=yes)
    say(name, store.promote(name, artifact.digest, version, expected=expected), as_json=as_json)


@app.command(epilog=EPILOG)
def rollback(
    domain: Name,
    yes: Yes = False,
    without: Without = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Swap the champion and the previous version."""
    settings = stored(model_store=model_store, encoder=encoder)
    store, artifact, name = change(settings, domain)
    expected = store.aliases(name, artifact.digest)
    if expected.previous is not None:
        servable(store, artifact, name, expected.previous)
        check_targets(store, name, expected.previous, expected, without)
        confirmed(f"Make {name}@{expected.previous} the champion (now: {called(name, expected.champion)})?", yes=yes)
    say(name, store.rollback(name, artifact.digest, expected=expected), as_json=as_json)


@app.command(epilog=EPILOG)
def delete(
    domain: Name,
    version: Annotated[
        int | None,
        typer.Argument(help="the version to delete; default: the whole domain", min=1, autocompletion=version_numbers),
    ] = None,
    yes: Yes = False,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Delete a version, or a domain with all its versions, for good; version numbers are never reused."""
    settings = stored(model_store=model_store)
    if version is None:
        delete_domain(settings, domain, yes=yes, as_json=as_json)
        return
    name = alone(settings, domain)
    store = DomainStore(settings.model_store)
    store.manifest(name, version)
    confirmed(f"Delete {name}@{version} for good?", yes=yes)
    store.delete(name, version)
    if as_json:
        print_json({"domain": name, "deleted": version, "versions": store.versions(name)})
    else:
        print(f"{name}@{version} is deleted")


def delete_domain(settings: Settings, domain: str, *, yes: bool, as_json: bool) -> None:
    """Deletes a domain, as `DELETE /domains/{domain}` does; may be repeated. Servers notice the deletion within 2 s,
    workers at their next heartbeat."""
    name = DomainRef.parse(domain).name
    if name != domain:
        raise InvalidInput(f"domain {domain!r}: give the name without a version, which is a separate argument")
    store, jobs = DomainStore(settings.model_store), JobStore(settings.jobs_root)
    count = len(store.versions(name))
    versions = f"{count} version{'' if count == 1 else 's'}"
    confirmed(f"Delete {name} with {versions} for good, and cancel its calibrations?", yes=yes)
    try:
        ended = remove_domain(store, jobs, MigrationStore(settings.model_store), name)
    except UnknownDomain:
        known(settings, name)  # raises an error that lists the known domains
        raise
    cancelled = [jobs.cancel(job.id).id for job in ended]
    if as_json:
        print_json({"domain": name, "deleted": True, "versions": [], "cancelled": cancelled})
        return
    print(f"{name} is deleted")
    for job in cancelled:
        print(f"  calibration {job} is cancelled")


@app.command("export", epilog=EPILOG)
def export_archive(
    output: Annotated[Path, typer.Option("--output", "-o", help="the tar file to write")],
    domain: Annotated[
        str | None,
        typer.Argument(
            help="a domain with all its versions (name), or one version (name@3, name@previous)",
            autocompletion=versions,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="all domains")] = False,
    model_store: Store = None,
    encoder: EncoderId = None,
) -> None:
    """Write domains to one file, with versions, champions and saved thresholds, for backups and other servers."""
    from isosim.domains.archive import export_domains, selected  # noqa: PLC0415 - ONNX Runtime

    if (domain is None) != every:
        raise typer.BadParameter("give one of them", param_hint="DOMAIN or --all")
    if output.exists():
        raise InvalidInput(f"{output} exists already, and an export overwrites no file; choose another name")
    settings = stored(model_store=model_store, encoder=encoder)
    store = DomainStore(settings.model_store)
    if domain is None:
        wanted: Iterable[tuple[str, list[int]]] = ((name, store.versions(name)) for name in store.names())
    else:
        known(settings, domain)
        named_encoder = (
            EncoderStore.at(settings.model_store, settings.seed_store).find(settings.encoder).digest
            if "@" in domain
            else ""
        )
        wanted = [selected(store, domain, named_encoder)]
    # A unique name, because two exports may run at once.
    part = output.with_name(f".{output.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with part.open("xb") as out:
            domains, count = export_domains(store, wanted, out)
            out.flush()
            os.fsync(out.fileno())
        part.rename(output)
    finally:
        part.unlink(missing_ok=True)
    said = f"{count} version{'' if count == 1 else 's'} of {domains} domain{'' if domains == 1 else 's'}"
    print(f"{output}: {said}, {output.stat().st_size:,} bytes")


@app.command("import", epilog=EPILOG)
def import_archive(
    file: Annotated[
        Path, typer.Argument(help="an archive written by isosim domains export", exists=True, dir_okay=False)
    ],
    rename: Annotated[
        str | None, typer.Option("--as", help="new name of the domain, if the archive holds only one")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check everything, change nothing")] = False,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Add the versions of an archive. Overwrites and promotes nothing, and may be repeated."""
    from isosim.domains.archive import EncodersOfStore, import_domains  # noqa: PLC0415 - ONNX Runtime

    settings = stored(model_store=model_store)
    store, encoders = (
        DomainStore(settings.model_store),
        EncodersOfStore(EncoderStore.at(settings.model_store, settings.seed_store)),
    )
    with file.open("rb") as content:
        imported = import_domains(content, store, encoders, rename=rename, dry_run=dry_run)
    if as_json:
        print_json(imported)
        return
    for one in imported.versions:
        is_there = "is there already" if one.there else "would be added" if dry_run else "is added"
        was = "" if one.was is None else f"; {one.was} in the archive"
        print(f"{one.source} {is_there}: {one.domain}@{one.version}, encoder {one.encoder}{was}")
        if one.was == "champion" and not dry_run:
            print(
                f"  to make it the champion: isosim domains promote {one.domain} {one.version} --encoder {one.encoder}"
            )
    for name in imported.thresholds:
        print(f"threshold {name} {'would be' if dry_run else 'is'} saved")
    for name in imported.kept:
        print(f"threshold {name} is not imported: its name is taken or invalid, or the domain has too many thresholds")


def change(settings: Settings, domain: str) -> tuple[DomainStore, EncoderArtifact, str]:
    artifact = EncoderStore.at(settings.model_store, settings.seed_store).find(settings.encoder)
    return DomainStore(settings.model_store), artifact, alone(settings, domain)


def alone(settings: Settings, domain: str) -> str:
    """The name of a domain. Raises InvalidInput if it includes a version, NotFound if the store has no such domain."""
    ref = known(settings, domain)
    if domain != ref.name:
        raise InvalidInput(f"domain {domain!r}: give the name without a version, which is a separate argument")
    if not DomainStore(settings.model_store).versions(ref.name):
        raise NotFound(f"domain {ref.name!r} has no version yet")
    return ref.name


def servable(store: DomainStore, artifact: EncoderArtifact, name: str, version: int) -> None:
    """Checks that a version can be loaded, as the API does before it changes the champion.

    Raises NotFound, EncoderMismatch or CorruptArtifact.
    """
    from isosim.domains.calibrations import StoredCalibrations  # noqa: PLC0415 - ONNX Runtime; a list needs none
    from isosim.encoders.onnx_engine import OnnxCalibrator  # noqa: PLC0415

    calibrator = OnnxCalibrator(artifact.calibrator, ["CPUExecutionProvider"])
    StoredCalibrations(store, calibrator, artifact.digest).load(name, version)


def check_targets(
    store: DomainStore, name: str, version: int, expected: Aliases, without: Sequence[str] | None
) -> None:
    """Raises Conflict if the version would make saved targets unreachable that `without` does not name."""
    if not expected.targets or expected.champion is None:
        return
    try:
        champion = store.load(name, expected.champion).model
    except (CorruptArtifact, NotFound):
        return  # a damaged or deleted champion reaches no target
    lost = lost_targets(champion, store.load(name, version).model, name, expected.targets)
    check_lost(lost, without or (), version)


def called(name: str, version: int | None) -> str:
    return "none" if version is None else f"{name}@{version}"


def say(name: str, aliases: Aliases, *, as_json: bool) -> None:
    if as_json:
        print_json({"domain": name, "champion": aliases.champion, "previous": aliases.previous})
        return
    print(f"{name}: champion {called(name, aliases.champion)}, previous {called(name, aliases.previous)}")
