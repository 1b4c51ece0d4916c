"""Commands as a shell runs them: in a process of their own, with a store that has a domain."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isosim.encoders.store import EncoderArtifact, EncoderStore
from tests.processes import command, environment
from tests.stores import calibrate

Finished = subprocess.CompletedProcess[str]
Run = Callable[..., Finished]


@pytest.fixture(scope="session")
def calibrated_store(tiny_store: Path, tiny: EncoderArtifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny encoder; `default@1` identity, `tickets@1` centring, `tickets@2` (champion) soft whitening."""
    store = tmp_path_factory.mktemp("calibrated") / "store"
    shutil.copytree(tiny_store / "encoders", store / "encoders")
    artifact = EncoderStore.at(store).find(tiny.id)
    for domain, method in (("default", "identity"), ("tickets", "centring"), ("tickets", "soft")):
        calibrate(store, artifact, domain, method)
    return store


@pytest.fixture
def own_store(calibrated_store: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(calibrated_store, tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def run(calibrated_store: Path) -> Run:
    """A command on the calibrated store, unless a setting names another."""
    return lambda *words, **given: command(
        *words, **dict[str, Any](model_store=calibrated_store, encoder="tiny") | given
    )


def started(store: Path, *words: str, **pipes: Any) -> "subprocess.Popen[bytes]":
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | pipes
    return subprocess.Popen(
        [sys.executable, "-m", "isosim.cli", *words],
        env=environment(model_store=store, encoder="tiny"),
        preexec_fn=listen_to_ctrl_c,  # noqa: PLW1509 - no thread runs here, and it sets a signal, nothing else
        **streams,
    )


def listen_to_ctrl_c() -> None:
    """A test run in the background of a shell ignores SIGINT, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
