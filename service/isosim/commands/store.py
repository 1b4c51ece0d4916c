"""`isosim store`: maintenance of the model store."""

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from isosim.commands.shared import AsJson, Store, domain_store, settings_with, stored
from isosim.commands.terminal import EPILOG, answer, group, print_json, show
from isosim.encoders.store import EncoderStore
from isosim.errors import InvalidInput, IsosimError, NotFound, Unavailable
from isosim.jobs.store import JobStore
from isosim.settings import Settings
from isosim.store.artifacts import Garbage, since, superfluous
from isosim.store.blobs import check, opened
from isosim.store.identity import create
from isosim.wording import version_name

log = logging.getLogger(__name__)

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# Minimum for --older-than, in s. The command removes unfinished files that are not locked. A process creates a file and
# locks it a moment later, so a new file must not be removed.
LEAST = 60.0

app = group("Make and maintain the model store.")


@app.command(epilog=EPILOG)
def init(model_store: Store = None, as_json: AsJson = False) -> None:
    """Make an empty model store, or print the id of an existing one."""
    blobs = opened(settings_with(model_store=model_store).model_store)
    check(blobs)
    store_id = create(blobs)
    answer({"id": store_id}, store_id, as_json=as_json)


@app.command(epilog=EPILOG)
def repair(
    domain: Annotated[str, typer.Argument(help="a domain whose record is damaged")],
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild a domain's damaged record from what can be read of it and from its versions' manifests. A sound record
    stays as it is."""
    record = domain_store(stored(model_store=model_store)).repair(domain)
    served = {digest: asdict(aliases) for digest, aliases in record.aliases.items()}
    facts = {"domain": domain, "versions": sorted(record.versions), "revision": record.revision, "served": served}
    champions = [f"{aliases.champion} for encoder {digest[:12]}" for digest, aliases in record.aliases.items()]
    versions = ", ".join(map(str, sorted(record.versions)))
    remedy = f"none; to make one: isosim domains promote {domain} VERSION" if versions else "none"
    text = f"{domain}: versions {versions or 'none'}; champions: {', '.join(champions) or remedy}"
    answer(facts, text, as_json=as_json)


@app.command(epilog=EPILOG)
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list what would be removed")] = False,
    older_than: Annotated[str, typer.Option(help="minimum age of files to remove, like 30m, 24h or 7d")] = "24h",
    encoders: Annotated[
        bool,
        typer.Option("--encoders", help="also remove exported encoders that no version, job or ISOSIM_ENCODER uses"),
    ] = False,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Remove unused files: unfinished uploads, old versions, leftovers of deleted versions."""
    settings = stored(model_store=model_store)
    rows, freed = [], 0
    for item in garbage(settings, seconds(older_than), encoders=encoders):
        if not dry_run:
            try:
                item.remove()
            except NotFound:
                continue  # another process has removed it already
        rows.append({"name": item.name, "why": item.why, "bytes": item.size})
        freed += item.size
    if as_json:
        print_json({"dry_run": dry_run, "bytes": freed, "removed": rows})
        return
    if rows:
        show(("what", "why", "bytes"), [list(row.values()) for row in rows])
    print(f"{len(rows)} items, {freed:,} bytes {'would be' if dry_run else 'are'} freed")


def seconds(text: str) -> float:
    """Seconds of a duration like 24h. Raises InvalidInput if it is malformed or shorter than a minute."""
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None or int(match[1]) * UNITS[match[2]] < LEAST:
        raise InvalidInput(f"--older-than {text!r}: give a number followed by s, m, h or d, at least {LEAST:g}s")
    return float(int(match[1]) * UNITS[match[2]])


def garbage(settings: Settings, age: float, *, encoders: bool) -> Iterator[Garbage]:
    """Yields files older than `age` seconds that can be removed. Leaves out files that an unfinished job uses."""
    domains, exports = domain_store(settings), EncoderStore.at(settings.model_store)
    records = JobStore(domains.blobs)
    jobs, resting = records.unended(), records.rested_on()
    yield from domains.blobs.unfinished(age)
    yield from domains.garbage(age)
    needed: set[str] | None = {job.request.encoder for job in jobs}
    for name in domains.names():
        try:
            record = domains.read(name)
            fresh = {number for number, version in record.versions.items() if since(version.created) < age}
        except IsosimError as error:
            log.warning("skipping domain %s%s: %s", name, " and all encoders" if encoders else "", error)
            needed = None  # remove no encoder: versions that cannot be read may use any of them
            continue
        if needed is not None:
            needed |= {version.encoder for version in record.versions.values()}
        spare = resting[name] | fresh
        # One call of `remove` deletes all old versions of the domain. Later calls find no old version.
        remove = partial(domains.prune, name, settings.keep_versions, spare)
        old = superfluous(record.versions, settings.keep_versions, spare | record.named())
        for number, size in [(number, domains.size(name, record.versions[number])) for number in old]:
            yield Garbage(version_name(name, number), "an old version", size, remove)
    if not encoders:
        needed = None
    elif needed is not None:
        with contextlib.suppress(Unavailable):  # raised if the store has no encoder named ISOSIM_ENCODER
            needed.add(exports.find(settings.encoder).digest)
    yield from exports.garbage(age, needed)
