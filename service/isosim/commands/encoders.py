"""`isosim encoder`: list encoders; register encoders that run on other servers, or whose vectors users compute."""

from pathlib import Path
from typing import Annotated

import typer

from isosim.commands.shared import (
    AsJson,
    Store,
    Yes,
    confirmed,
    domain_store,
    need_training,
    stored,
)
from isosim.commands.terminal import EPILOG, answer, group, print_json, remark, show, steps
from isosim.encoders.store import EncoderArtifact, EncoderStore
from isosim.errors import InvalidInput

# Default maximum number of tokens per text, for an encoder on another server. isosim estimates a text's number of
# tokens and cuts longer texts. If the server's model allows fewer tokens, the server itself cuts or refuses the text.
MAX_LENGTH = 8192

app = group("List encoders; add, check and remove encoders that run on another server, or whose vectors you compute.")

Id = Annotated[str, typer.Argument(metavar="NAME", help="name of the encoder in the store")]


@app.command(epilog=EPILOG)
def add(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="name for the encoder in the store; ISOSIM_ENCODER selects it by this name"
        ),
    ],
    url: Annotated[
        str | None, typer.Option(help="address of the encoder's server with /v1, like http://127.0.0.1:8080/v1")
    ] = None,
    model: Annotated[str | None, typer.Option(help="name of the model on the encoder's server")] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="instead of --url: dimension of the vectors that you bring")
    ] = None,
    unit_vectors: Annotated[
        bool,
        typer.Option("--unit-vectors", help="with --dimensions: your vectors have norm 1, and isosim refuses others"),
    ] = False,
    key_file: Annotated[
        Path | None,
        typer.Option(help="file with the server's API key; read at each request", exists=True, dir_okay=False),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="prefix of every text, like 'query: '")] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"maximum tokens per text, counted as 4 bytes each; longer texts are cut; default: {MAX_LENGTH}"
        ),
    ] = None,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Add an encoder that runs on another server (POST /v1/embeddings), or whose vectors you compute.

    For a new encoder on another server, the command stores the vectors of four fixed texts; isosim later computes them
    again to notice if the server runs another model. For a registered encoder, it changes the address of the server.
    """
    of_server = {"url": url, "model": model, "key-file": key_file, "prompt": prompt, "max-length": max_length}
    if dimensions is not None:
        given = [f"--{option}" for option, value in of_server.items() if value is not None]
        if given:
            raise typer.BadParameter("cannot be combined with --dimensions", param_hint=", ".join(given))
    elif url is None or model is None:
        raise typer.BadParameter(
            "give both, or --dimensions for vectors that you bring", param_hint="--url and --model"
        )
    elif unit_vectors:
        raise typer.BadParameter("needs --dimensions", param_hint="--unit-vectors")
    need_training()
    settings = stored(model_store=model_store)
    with steps("starting") as say:
        from isosim.export import brought, remote  # noqa: PLC0415 - torch takes seconds; the bar says so

        if dimensions is not None:
            artifact = brought.register(settings.model_store, name, dimensions, unit=unit_vectors, say=say)
        else:
            artifact = remote.register(
                settings.model_store, name, url or "", model or "", say,
                key_file=key_file, prompt=prompt or "", max_length=max_length or MAX_LENGTH,
            )  # fmt: skip
    answer(facts_of(artifact), artifact.id, as_json=as_json)
    file = "FILE.npy" if artifact.kind == "vectors" else "FILE"
    remark(
        f"serve it with ISOSIM_ENCODER={artifact.id}; for percentiles, calibrate first: isosim calibrate {file} "
        f"--domain default --encoder {artifact.id}"
    )


@app.command("list", epilog=EPILOG)
def list_(model_store: Store = None, as_json: AsJson = False) -> None:
    """List the encoders of the store, each with its newest export."""
    encoders = EncoderStore.at(stored(model_store=model_store).model_store)
    found = [facts_of(encoders.find(name)) for name in encoders.ids()]
    if as_json:
        print_json({"encoders": found})
        return
    columns = ("id", "kind", "model", "dim", "max_length", "digest", "url")
    show(columns, [[str(one[name] or "")[: 12 if name == "digest" else None] for name in columns] for one in found])


@app.command(epilog=EPILOG)
def check(name: Id, model_store: Store = None, as_json: AsJson = False) -> None:
    """Check that a remote encoder's server returns the same vectors as when the encoder was registered."""
    artifact = registered(EncoderStore.at(stored(model_store=model_store).model_store), name)
    if artifact.remote is None:
        raise InvalidInput(f"encoder {name} has no server to check: its users bring the vectors")
    from isosim.encoders.remote import check as check_probes  # noqa: PLC0415 - httpcore2

    off = check_probes(artifact)
    same = f"{name}: the server gives the same vectors as at the registration (relative difference up to {off:.1e})"
    answer(facts_of(artifact) | {"off": off}, same, as_json=as_json)


@app.command(epilog=EPILOG)
def remove(name: Id, yes: Yes = False, model_store: Store = None, as_json: AsJson = False) -> None:
    """Remove a registered encoder from the store. Domain versions that were calibrated for this encoder stay in the
    store, but can no longer be served."""
    settings = stored(model_store=model_store)
    encoders = EncoderStore.at(settings.model_store, settings.seed_store)
    artifact = registered(encoders, name)
    domains = domain_store(settings)
    served = [one for one in domains.names() if domains.read(one).served(artifact.digest).champion is not None]
    of = f", with which {len(served)} domain{'s are' if len(served) > 1 else ' is'} served," if served else ""
    confirmed(f"Remove encoder {name}{of} for good?", yes=yes)
    encoders.remove(artifact)
    facts = {"id": name, "removed": artifact.digest, "domains": served}
    answer(facts, f"encoder {name} is removed", as_json=as_json)


def registered(encoders: EncoderStore, name: str) -> EncoderArtifact:
    """Finds an encoder that runs on another server, or for which users bring vectors.

    Raises:
        InvalidInput: isosim runs the encoder itself.
        Unavailable: the store has no encoder of this name.
    """
    artifact = encoders.find(name)
    if artifact.kind == "onnx":
        raise InvalidInput(f"encoder {name} was exported and runs in isosim itself; to check it: isosim doctor")
    return artifact


def facts_of(artifact: EncoderArtifact) -> dict[str, object]:
    endpoint, spec = artifact.remote, artifact.spec
    return {
        "id": artifact.id,
        "digest": artifact.digest,
        "kind": artifact.kind,
        "model": spec.source if endpoint is None else endpoint.model,
        "dim": spec.dim,
        "max_length": spec.max_length,
        "prompt": spec.prompt,
        "precision": spec.precision,
        "unit_vectors": artifact.unit_vectors,
        "url": None if endpoint is None else endpoint.url,
        "key_file": None if endpoint is None else endpoint.key_file,
    }
