"""One entry point: `isosim <command>`; every option is also a setting `ISOSIM_*`."""

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ValidationError
from rich.table import Table

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderStore
from service.commands import calibration, evaluating, measuring
from service.commands.calibration import stored_version
from service.commands.shared import AsJson, EncoderId, Store, err, need_training, out, settings_with
from service.core.errors import IsosimError, Unavailable

Precision = Literal["fp32", "int8", "fp16", "auto"]

app = typer.Typer(no_args_is_help=True, add_completion=True, help="Calibrated sentence similarity.")
app.add_typer(measuring.measure, name="measure")
for command in (calibration.calibrate, calibration.label, calibration.threshold, evaluating.evaluate):
    app.command()(command)


def main() -> None:
    """Exit codes: 0 done, 1 a stated error, 2 a wrong command line or setting."""
    logging.basicConfig(level="WARNING", format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except IsosimError as error:
        err.print(f"isosim: {error}", style="red", markup=False, highlight=False)
        sys.exit(1)
    except ValidationError as error:
        for found in error.errors():
            name = "_".join(str(part) for part in found["loc"]).upper()
            err.print(f"isosim: ISOSIM_{name}: {found['msg']}", style="red", markup=False, highlight=False)
        sys.exit(2)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to bind (ISOSIM_HOST)")] = None,
    port: Annotated[int | None, typer.Option(help="port to bind (ISOSIM_PORT)")] = None,
    model_store: Store = None,
    encoder: EncoderId = None,
    redis_url: Annotated[str | None, typer.Option(help="Redis for cache and jobs (ISOSIM_REDIS_URL)")] = None,
) -> None:
    """Run the API."""
    from service.app import Server  # noqa: PLC0415 - other commands start faster without

    settings = settings_with(host=host, port=port, model_store=model_store, encoder=encoder, redis_url=redis_url)
    logging.getLogger().setLevel(settings.log_level.upper())
    server = Server(settings)
    server.run()
    if not server.started:
        raise typer.Exit(1)


@app.command()
def worker(
    model_store: Store = None,
    redis_url: Annotated[str | None, typer.Option(help="Redis with the job queue (ISOSIM_REDIS_URL)")] = None,
    burst: Annotated[bool, typer.Option(help="stop when the queue is empty")] = False,
) -> None:
    """Run calibrations that the API puts into Redis."""
    need_training()
    settings = settings_with(model_store=model_store, redis_url=redis_url)
    if settings.redis_url is None:
        raise Unavailable("a worker needs Redis (ISOSIM_REDIS_URL); without it the API runs calibrations by itself")
    import os  # noqa: PLC0415

    # RQ's children read their settings anew.
    os.environ["ISOSIM_MODEL_STORE"] = str(settings.model_store.resolve())
    from service.worker import serve_queue  # noqa: PLC0415

    serve_queue(settings, burst=burst)


def encoder_id(source: str, layers: int | None, pooling: str | None) -> str:
    """A readable default: minilm, minilm-layers3, minilm-layers3-cls."""
    name = Path(source).name.lower() if Path(source).is_dir() else source.rsplit("/", 1)[-1].lower()
    return name + (f"-layers{layers}" if layers is not None else "") + (f"-{pooling}" if pooling else "")


@app.command()
def export(
    encoder: Annotated[str, typer.Option(help="a folder, a hub id or a known name")] = "minilm",
    revision: Annotated[str | None, typer.Option(help="of a hub id")] = None,
    pooling: Annotated[str | None, typer.Option(help="cls, mean, max, first-last-avg or last2avg")] = None,
    layers: Annotated[int | None, typer.Option(help="keep the first N transformer layers")] = None,
    max_length: Annotated[int | None, typer.Option(help="tokens, special ones included")] = None,
    prompt: Annotated[str, typer.Option(help="put before every text")] = "",
    precision: Annotated[
        Precision, typer.Option(help="fp32, and beside it int8 (CPU), fp16 (GPU), or what passes its trial: auto")
    ] = "fp32",
    text: Annotated[
        Path | None,
        typer.Option(help="sentences int8 takes its ranges from; else Python's manual", dir_okay=False),
    ] = None,
    sts: Annotated[Path | None, typer.Option(help="labelled sets to measure the loss on", file_okay=False)] = None,
    name: Annotated[str | None, typer.Option("--id", help="its name in the store")] = None,
    model_store: Store = None,
) -> None:
    """Export an encoder, its pooling and the calibrator into the model store."""
    need_training()
    settings = settings_with(model_store=model_store)
    with err.status("reading the checkpoint") as status:
        from service.modelling import checkpoints, store  # noqa: PLC0415
        from service.modelling import encoder as encoders  # noqa: PLC0415

        checkpoint = checkpoints.resolve(encoder, revision)
        spec = encoders.describe(checkpoint, pooling=pooling, layers=layers, max_length=max_length, prompt=prompt)

        def say(text: str) -> None:
            status.update(text)
            err.print(f"  {text}", markup=False, highlight=False)

        artifact = store.export(
            settings.model_store, name or encoder_id(encoder, layers, pooling), checkpoint, spec, say
        )
        if precision != "fp32":
            from service.modelling.reduced import Evidence, export_reduced  # noqa: PLC0415

            reduced = export_reduced(settings.model_store, artifact, precision, Evidence(text, sts), say)
            artifact = reduced or artifact
    out.print(artifact.id, markup=False)


@app.command()
def bundle(
    domain: Annotated[str, typer.Argument(help="name, name@3 or name@previous")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the ONNX file to write")],
    model_store: Store = None,
    encoder: EncoderId = None,
) -> None:
    """Write one ONNX file with a domain's weights baked in."""
    need_training()
    settings = settings_with(model_store=model_store, encoder=encoder)
    from service.modelling.bundle import bundle as write  # noqa: PLC0415

    artifact = EncoderStore(settings.model_store).find(settings.encoder)
    ref, version, _ = stored_version(settings, domain)
    stored = DomainStore(settings.model_store).load(ref.name, version)
    write(artifact, stored, output)
    out.print(f"{output}: {ref.name}@{version}", markup=False)


@app.command()
def domains(model_store: Store = None, as_json: AsJson = False) -> None:
    """List domains, versions and champions."""
    store = DomainStore(settings_with(model_store=model_store).model_store)
    rows = []
    for name in store.domains():
        for version in store.versions(name):
            manifest = store.manifest(name, version)
            aliases = store.aliases(name, manifest["encoder"]["digest"])
            alias = "champion" if version == aliases.champion else "previous" if version == aliases.previous else ""
            rows.append(
                {
                    "domain": name,
                    "version": version,
                    "alias": alias,
                    "method": manifest["method"],
                    "encoder": manifest["encoder"]["id"],
                    "sentences": manifest.get("sentences"),
                    "created": manifest["created"],
                }
            )
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(*(rows[0] if rows else ["domain", "version"]))
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    out.print(table)


if __name__ == "__main__":
    main()
