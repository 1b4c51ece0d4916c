"""Which stored version a name on the command line means."""

from typing import Any

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.core.calibration import DomainRef
from service.core.errors import InvalidInput, NotFound
from service.core.registry import DEFAULT
from service.settings import Settings


def known(settings: Settings, domain: str) -> DomainRef:
    """A reference to a domain that the store has.

    Raises:
        InvalidInput: no reference. NotFound: no such domain; the message lists those there are.
    """
    ref = DomainRef.parse(domain)
    domains = DomainStore(settings.model_store)
    if ref.name != DEFAULT and not domains.versions(ref.name):
        there = ", ".join(domains.domains()) or "none"
        raise NotFound(f"no domain {ref.name!r} in {settings.model_store}; there are: {there}")
    return ref


def stored_version(settings: Settings, domain: str) -> tuple[DomainRef, int, dict[str, Any]]:
    """The version a reference means for the encoder of the settings, with its manifest.

    Raises:
        NotFound: no such version. InvalidInput: it was made for another encoder.
    """
    ref = known(settings, domain)
    artifact = EncoderStore(settings.model_store).find(settings.encoder)
    domains = DomainStore(settings.model_store)
    aliases = domains.aliases(ref.name, artifact.digest)
    version = {"champion": aliases.champion, "previous": aliases.previous}.get(str(ref.version), ref.version)
    if version is None:
        raise NotFound(f"domain {ref.name!r} has no {ref.version} for encoder {artifact.id}")
    manifest = domains.manifest(ref.name, int(version))
    if manifest["encoder"]["digest"] != artifact.digest:
        raise InvalidInput(f"{ref.name}@{version} was made for encoder {manifest['encoder']['id']}")
    return ref, int(version), manifest
