"""`isosim export` writes an encoder's ONNX graphs into the store; `isosim bundle` writes one ONNX file that also
contains a domain's weights."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from isosim.commands.shared import (
    AsJson,
    EncoderId,
    Store,
    domain_store,
    encoder_of,
    need_training,
    settings_with,
)
from isosim.commands.terminal import answer, bar, steps
from isosim.errors import InvalidInput, NotFound
from isosim.store.blobs import opened
from isosim.store.identity import create

Precision = Literal["fp32", "bf16", "int8", "fp16"]


def encoder_id(source: str, layers: int | None, pooling: str | None) -> str:
    """Default id of an export, like minilm, minilm-layers3 or minilm-layers3-cls."""
    name = Path(source).name.lower() if Path(source).is_dir() else source.rsplit("/", 1)[-1].lower()
    return name + (f"-layers{layers}" if layers is not None else "") + (f"-{pooling}" if pooling else "")


def export(
    encoder: Annotated[str, typer.Option(help="encoder to export: a folder, a hub id or minilm")] = "minilm",
    revision: Annotated[str | None, typer.Option(help="revision of a hub id")] = None,
    pooling: Annotated[str | None, typer.Option(help="cls, mean, max, pooler, …; default: the checkpoint's")] = None,
    layers: Annotated[int | None, typer.Option(help="keep the first N transformer layers")] = None,
    max_length: Annotated[
        int | None, typer.Option(help="maximum number of tokens per text, including special tokens")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="prefix of every text; default: the checkpoint's")] = None,
    precision: Annotated[
        Precision,
        typer.Option(
            help="also export bf16 (CPU with AVX-512 BF16 or AMX), int8 (CPU) or fp16 (GPU); loss: isosim evaluate"
        ),
    ] = "fp32",
    text: Annotated[
        Path | None,
        typer.Option(
            help="int8: text with which the ranges of activations are measured; default: Python's manual",
            dir_okay=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--id", help="name for the encoder in the store")] = None,
    model_store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Export an encoder, its pooling and the calibrator into the model store."""
    need_training()
    settings = settings_with(model_store=model_store)
    with steps("reading the checkpoint") as say:
        from isosim.export import checkpoints  # noqa: PLC0415 - torch takes seconds; the bar says so
        from isosim.export import encoder as encoders  # noqa: PLC0415
        from isosim.export import model_store as store  # noqa: PLC0415

        checkpoint = checkpoints.resolve(encoder, revision)
        loaded = encoders.load(checkpoint, pooling=pooling, layers=layers, max_length=max_length, prompt=prompt)

        artifact = store.export(
            settings.model_store, name or encoder_id(encoder, layers, pooling), checkpoint, loaded, say
        )
        if precision != "fp32":
            from isosim.export.reduced import export_reduced  # noqa: PLC0415

            artifact = export_reduced(settings.model_store, artifact, precision, text, say)
    create(opened(settings.model_store))
    place = {"id": artifact.id, "digest": artifact.digest, "folder": str(artifact.folder)}
    about = {"licence": artifact.licence, "prompts": artifact.prompts}
    answer({**place, **about, **asdict(artifact.spec)}, artifact.id, as_json=as_json)


def bundle(
    domain: Annotated[str, typer.Argument(help="name, name@3 or name@previous")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the ONNX file to write")],
    model_store: Store = None,
    encoder: EncoderId = None,
    as_json: AsJson = False,
) -> None:
    """Write one ONNX file that contains the encoder and a domain's weights."""
    need_training()
    from isosim.commands.client import connected, pinned  # noqa: PLC0415 - the client; images export without it

    with connected(model_store=model_store, encoder=encoder) as client:
        version = pinned(client, domain)
    settings = settings_with(model_store=model_store, encoder=encoder)
    artifact = encoder_of(settings)
    if artifact.kind != "onnx":
        where = "runs on another server" if artifact.kind == "remote" else "has vectors that its users bring"
        raise InvalidInput(f"encoder {artifact.id} {where}: there is no graph to bundle")
    if version.encoder != artifact.digest:
        raise NotFound(
            f"{version} was not made for encoder {artifact.id}; to make a version: isosim calibrate FILE --domain "
            f"{version.domain} --encoder {artifact.id}"
        )
    if not output.parent.is_dir():  # checked here, before the slow work
        raise FileNotFoundError(2, "No such folder", str(output.parent))
    with bar("reading the graph") as progress:
        from isosim.export.model_store import bundle as write  # noqa: PLC0415 - torch takes seconds; the bar says so

        progress("writing the graph", None)
        loaded = domain_store(settings).load(version.domain, version.version)
        write(artifact, version.domain, loaded, output)
    facts = {"output": str(output), **version._asdict(), "method": loaded.version.method}
    answer({**facts, "bytes": output.stat().st_size}, f"{output}: {version}", as_json=as_json)
