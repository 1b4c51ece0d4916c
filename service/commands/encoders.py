"""`isosim encoder`: encoders of the store, and those that run on other servers."""

from pathlib import Path
from typing import Annotated

import typer

from service.adapters.domains.store import DomainStore
from service.adapters.encoder.store import EncoderArtifact, EncoderStore
from service.commands.shared import AsJson, Store, Yes, confirmed, encoder_ids, need_training, settings_with, stored
from service.commands.terminal import EPILOG, bar, print_json, remark, show
from service.core.errors import InvalidInput

MAX_LENGTH = 8192  # estimated tokens; text-embeddings-inference and OpenAI cut or refuse where their model ends

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List encoders; add, check and remove one that runs on another server.",
    epilog=EPILOG,
)

Id = Annotated[str, typer.Argument(metavar="NAME", help="its name in the store", autocompletion=encoder_ids)]


@app.callback()
def encoder() -> None:
    """List encoders; add, check and remove one that runs on another server."""


@app.command(epilog=EPILOG)
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="its name in the store, for ISOSIM_ENCODER")],
    url: Annotated[str, typer.Option(help="of its server, up to and with /v1: http://127.0.0.1:8080/v1")],
    model: Annotated[str, typer.Option(help="its name there")],
    key_file: Annotated[
        Path | None, typer.Option(help="holds the server's key; read at each request", exists=True, dir_okay=False)
    ] = None,
    prompt: Annotated[str, typer.Option(help="put before every text, like 'query: '")] = "",
    max_length: Annotated[int, typer.Option(min=1, help="tokens of 4 bytes; what is longer is cut")] = MAX_LENGTH,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Add an encoder that another server runs (POST /v1/embeddings), or give it a new address.

    The server is asked for the vectors of four fixed texts, which are compared with every later answer.
    """
    need_training()
    settings = settings_with(model_store=model_store)
    with bar("starting") as progress:
        from service.modelling.encoder import remote  # noqa: PLC0415 - torch takes seconds; the bar says so

        def say(text: str) -> None:
            progress(text, None)
            remark(f"  {text}")

        artifact = remote.register(
            settings.model_store, name, url, model, say, key_file=key_file, prompt=prompt, max_length=max_length
        )
    if as_json:
        print_json(facts_of(artifact))
        return
    print(artifact.id)
    remark(
        f"serve it with ISOSIM_ENCODER={artifact.id}; percentiles come after: isosim calibrate FILE --domain default"
    )


@app.command("list", epilog=EPILOG)
def list_(model_store: Store = None, as_json: AsJson = False) -> None:
    """List the encoders of the store, each with its newest export."""
    encoders = EncoderStore(stored(model_store=model_store).model_store)
    found = [facts_of(encoders.find(name)) for name in encoders.ids()]
    if as_json:
        print_json({"encoders": found})
        return
    columns = ("id", "kind", "model", "dim", "max_length", "digest", "url")
    show(columns, [[str(one[name] or "")[: 12 if name == "digest" else None] for name in columns] for one in found])


@app.command(epilog=EPILOG)
def check(name: Id, model_store: Store = None, as_json: AsJson = False) -> None:
    """Ask a remote encoder's server whether it still answers as it was registered."""
    artifact = remote_one(EncoderStore(stored(model_store=model_store).model_store), name)
    from service.adapters.encoder.remote import check as check_probes  # noqa: PLC0415 - urllib3

    off = check_probes(artifact)
    if as_json:
        print_json(facts_of(artifact) | {"off": off})
        return
    print(f"{name}: answers as it was registered; known vectors differ by {off:.1e} of their length")


@app.command(epilog=EPILOG)
def remove(name: Id, yes: Yes = False, model_store: Store = None, as_json: AsJson = False) -> None:
    """Remove a remote encoder from the store; versions that were made for it cannot be served any more."""
    settings = stored(model_store=model_store)
    encoders = EncoderStore(settings.model_store)
    artifact = remote_one(encoders, name)
    domains = DomainStore(settings.model_store)
    served = [one for one in domains.domains() if domains.aliases(one, artifact.digest).champion is not None]
    of = f", with which {len(served)} domain{'s are' if len(served) > 1 else ' is'} served," if served else ""
    confirmed(f"Remove encoder {name}{of} for good?", yes=yes)
    encoders.remove(artifact)
    if as_json:
        print_json({"id": name, "removed": artifact.digest, "domains": served})
        return
    print(f"encoder {name} is removed")


def remote_one(encoders: EncoderStore, name: str) -> EncoderArtifact:
    """Raises InvalidInput where it is an exported one; Unavailable where there is none."""
    artifact = encoders.find(name)
    if artifact.remote is None:
        raise InvalidInput(f"encoder {name} was exported and runs in isosim itself; doctor checks it: isosim doctor")
    return artifact


def facts_of(artifact: EncoderArtifact) -> dict[str, object]:
    endpoint, spec = artifact.remote, artifact.spec
    return {
        "id": artifact.id,
        "digest": artifact.digest,
        "kind": "onnx" if endpoint is None else "remote",
        "model": spec.source if endpoint is None else endpoint.model,
        "dim": spec.dim,
        "max_length": spec.max_length,
        "prompt": spec.prompt,
        "precision": spec.precision,
        "url": None if endpoint is None else endpoint.url,
        "key_file": None if endpoint is None else endpoint.key_file,
    }
