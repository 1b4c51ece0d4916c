"""Other people's clients against a served default model; what they are tested for stands in tests/clients."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evaluation.corpora import HOME, SOURCES, distinct
from isosim.encoders.store import EncoderStore
from isosim.export.brought import register
from isosim.fitting.job import calibrate_job
from isosim.jobs.job import JobRequest
from isosim.jobs.offline import open_texts
from isosim.jobs.posted import Posted
from isosim.jobs.vector_files import NpyFile
from isosim.scoring.similarity import normalized
from tests.clients.environment import LOCAL_ONLY, PYTHON
from tests.processes import Serve, environment
from tests.security.conftest import key_file
from tests.stores import calibrate, domains_of

ROOT = Path(__file__).parents[3]
KEY = "a-key-for-the-clients"


def stsb_spearman(model_store: Path, data: Path, folder: Path) -> str:
    """What `isosim evaluate` gives on some pairs of STS-B; of the other sets it gets no more than it insists on."""
    for name in ("sts12", "sts13", "sts14", "sts15", "sts16", "sick", "stsb"):
        (folder / name).mkdir(parents=True)
        source, pairs = ("stsb", 300) if name == "stsb" else ("sick", 20)
        for part in ("test", "dev") if name == "stsb" else ("test",):
            rows = (data / "sts" / source / f"{part}.tsv").read_text(encoding="utf-8").splitlines()[:pairs]
            (folder / name / f"{part}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "isosim.cli", "evaluate", "--sts", str(folder), "--methods", "identity", "--json"]
    done = subprocess.run(command, env=environment(model_store=model_store), capture_output=True, check=True)
    return str(json.loads(done.stdout)[0]["all"]["STS-B"])


def brought_vectors(minilm_store: Path, data: Path, folder: Path) -> tuple[Path, Path]:
    """A store with an encoder of brought vectors, calibrated on some sentences, and unit vectors of others."""
    texts = distinct(SOURCES[HOME](data), HOME, 4000, least=4000)
    vectors = normalized(open_texts(EncoderStore.at(minilm_store).find("minilm"))(texts).vectors)
    np.save(folder / "unseen.npy", vectors[2000:])
    np.save(folder / "own.npy", vectors[:2000])
    ours = register(folder / "brought", "ours", 384, unit=True)
    domains, request = domains_of(folder / "brought"), JobRequest("default", ours.digest, ours.id)
    inputs = Posted([], (), NpyFile(folder / "own.npy"))
    calibrate_job(request, inputs, ours, domains, lambda _, __: None, threads=1).publish(domains)
    return folder / "brought", folder / "unseen.npy"


def whiten(store: Path, data: Path, folder: Path) -> Path:
    """Adds the domain `whitened`, and returns a file of other sentences of the same kind."""
    texts = distinct(SOURCES[HOME](data), HOME, 5800, least=5800)
    (folder / "held-out.txt").write_text("\n".join(texts[5000:]) + "\n", encoding="utf-8")
    calibrate(store, EncoderStore.at(store).find("minilm"), "whitened", "whitening", texts[:5000])
    return folder / "held-out.txt"


def test_openai_huggingface_langchain_llama_index_cohere_triton_mteb_and_vector_indexes(
    serve: Serve, minilm_store: Path, data: Path, tmp_path: Path
) -> None:
    """All of tests/clients, in the clients' own environment, on a server that wants a key (mteb sends none)."""
    assert PYTHON.is_file(), f"{PYTHON} is missing; make test-all installs the clients"
    keys = key_file(tmp_path, {KEY: "read clients"})
    copy = tmp_path / "store"
    shutil.copytree(minilm_store, copy)
    held_out = whiten(copy, data, tmp_path)
    server = serve(model_store=minilm_store, encoder="minilm", api_keys_file=keys)
    unlocked = serve(model_store=copy, encoder="minilm")
    brought, unseen = brought_vectors(minilm_store, data, tmp_path)
    vectors = serve(model_store=brought, encoder="ours")
    where = {
        "ISOSIM_URL": server.url, "ISOSIM_KEY": KEY, "ISOSIM_STS": str(tmp_path / "sts"),
        "ISOSIM_OPEN_URL": unlocked.url,
        "ISOSIM_STSB_SPEARMAN": stsb_spearman(minilm_store, data, tmp_path / "sts"), "PYTHONWARNINGS": "ignore",
        "ISOSIM_VECTORS_URL": vectors.url, "ISOSIM_VECTORS": str(unseen),
        "ISOSIM_HELD_OUT": str(held_out), "PYTHONPATH": str(LOCAL_ONLY), "HF_HUB_DISABLE_TELEMETRY": "1",
        "MEM0_TELEMETRY": "false", "MEM0_DIR": str(tmp_path / "mem0"), "ANONYMIZED_TELEMETRY": "false",
        "ORT_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    clean = {name: value for name, value in environment().items() if not name.startswith("PYTEST_")}
    suite = ROOT / "tests" / "clients"
    done = subprocess.run(
        [PYTHON, "-m", "pytest", suite, "-c", suite / "pytest.ini", "--confcutdir", suite, "-p", "no:cacheprovider"],
        env=clean | where, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    if done.returncode or "asked for another machine" in done.stdout + done.stderr:
        pytest.fail(done.stdout[-8000:] + done.stderr[-2000:], pytrace=False)
