"""Commands as calls of the Python client: on a server the same as on the app in the command's own process."""

import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import isosim_client
from isosim.commands.client import connected
from isosim.commands.similarity import pieces
from isosim.encoders.store import EncoderArtifact
from isosim.errors import IsosimError
from isosim.jobs.job import Job, JobRequest, Status
from tests.commands.conftest import Run, started
from tests.processes import Serve, Server, environment, free_port
from tests.stores import domains_of, jobs_of, post_job
from tests.text import sentences

PAIR = "\t".join(sentences(2)) + "\n"


@pytest.fixture(scope="module")
def served(module_serve: Serve, calibrated_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    store = shutil.copytree(calibrated_store, tmp_path_factory.mktemp("served") / "store")
    return module_serve(model_store=store, encoder="tiny")


@pytest.mark.parametrize(
    "words",
    [
        ("similarity", "--json", "--domain", "tickets"),
        ("embed", "--space", "raw"),
        ("threshold", "tickets", "--fmr", "0.1", "--unit", "l2", "--space", "calibrated"),
        ("similarity", "--domain", "nowhere"),
    ],
)
def test_a_server_gives_what_the_app_in_this_process_gives(run: Run, served: Server, words: tuple[str, ...]) -> None:
    here, there = (run(*words, *more, stdin=PAIR) for more in ((), ("--server", served.url)))
    assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)


def test_a_server_asks_for_the_key_of_the_environment(run: Run, serve: Serve, own_store: Path, tmp_path: Path) -> None:
    key = json.loads(run("keys", "new", "--scopes", "read", "--add", str(tmp_path / "keys"), "--json").stdout)["key"]
    server = serve(model_store=own_store, encoder="tiny", api_keys_file=tmp_path / "keys")
    words = ("threshold", "tickets", "--fmr", "0.1", "--server", server.url)
    refused = run(*words)
    assert (refused.returncode, refused.stderr.count("\n"), "an API key is needed" in refused.stderr) == (1, 1, True)
    given = run(*words, api_key=key)
    assert (given.returncode, given.stderr) == (0, "")
    assert key not in given.stdout


def test_what_a_server_cannot_be_asked_is_said_in_one_line(run: Run, tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    for words, code, said in (
        (("--server", nowhere), 1, "is the server running"),
        (("--server", "localhost:8000"), 2, "expected http://host:port"),
        (("--server", nowhere, "--model-store", str(tmp_path)), 2, "--server or --model-store"),
    ):
        done = run("threshold", "tickets", "--fmr", "0.1", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
        assert said in done.stderr


def test_limits_of_a_server_do_not_apply_to_a_command_on_its_store(run: Run) -> None:
    limits = {"max_pairs": 1, "max_body_bytes": 100, "max_wait": 1e-9, "request_timeout": 1e-6, "host": "0.0.0.0"}  # noqa: S104
    done = run("similarity", stdin=PAIR * 300, api_keys_file="/nowhere/keys", memory_cache_bytes=0, **limits)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 300)


def test_a_piece_is_bounded_by_number_and_by_characters() -> None:
    short, long = ["x"] * 600, ["x" * 150_000] * 5
    assert [len(piece) for piece in pieces(short, str)] == [256, 256, 88]
    assert [len(piece) for piece in pieces(long, str)] == [2, 2, 1]
    assert [*itertools.chain.from_iterable(pieces([*short, *long], str))] == [*short, *long]
    assert [len(piece) for piece in pieces(["x" * 1_000_000] * 2, str)] == [1, 1]
    assert [*pieces([], str)] == []


def test_a_client_of_a_server_imports_no_server() -> None:
    heavy = ("fastapi", "uvicorn", "onnxruntime", "torch")
    code = (
        "import sys; from isosim.cli import app\n"
        f"try: app(['similarity', '--server', 'http://127.0.0.1:{free_port()}', '/dev/null'])\n"
        f"except SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip() == "[]"


def test_a_calibration_is_the_same_on_a_server(run: Run, serve: Serve, own_store: Path, tmp_path: Path) -> None:
    other = shutil.copytree(own_store, tmp_path / "other")
    server = serve(model_store=other, encoder="tiny")
    texts = tmp_path / "texts.csv"
    texts.write_text("id,text\n" + "".join(f'{number},"{text}"\n' for number, text in enumerate(sentences(300))))
    words = ("calibrate", str(texts), "--column", "text", "--domain", "new", "--method", "identity", "--json")
    here, there = run(*words, model_store=own_store, threads=1), run(*words, "--server", server.url)
    made = [json.loads(done.stdout) for done in (here, there)]
    for one in made:
        del one["report"]["duration_seconds"]
    assert made[0] == made[1]
    refused = ("calibrate", str(texts), "--column", "text", "--domain", "new", "--method", "magic")
    here, there = run(*refused, model_store=own_store), run(*refused, "--server", server.url)
    assert (there.returncode, there.stderr) == (here.returncode, here.stderr) != (0, "")


@pytest.mark.parametrize("since", [{Status.QUEUED, Status.RUNNING}, {Status.RUNNING}], ids=["created", "running"])
def test_a_command_runs_its_own_job_alone_and_ctrl_c_cancels_it(
    own_store: Path, tmp_path: Path, tiny: EncoderArtifact, since: set[Status]
) -> None:
    jobs = jobs_of(own_store)
    others = post_job(jobs, JobRequest("tickets", tiny.digest, tiny.id, labels=20, base=1))
    texts = [f"{number} {text}" for number in range(60) for text in sentences(1000)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    words = ("calibrate", str(tmp_path / "texts.txt"), "--domain", "new", "--method", "flow")

    def mine() -> list[Job]:
        return [job for job in jobs.newest() if job.id != others.id]

    with started(own_store, *words, stdout=subprocess.DEVNULL) as process:
        while not any(job.status in since for job in mine()):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert [job.status for job in mine()] == [Status.CANCELLED]
    assert jobs.read(others.id).status is Status.QUEUED
    assert "new" not in domains_of(own_store).names()


def test_an_action_that_only_a_newer_server_knows_keeps_the_servers_words() -> None:
    remedy = {"action": "new", "arguments": {}, "text": "do what is new"}
    with (
        pytest.raises(IsosimError, match="no such thing; do what is new"),
        connected(f"http://127.0.0.1:{free_port()}"),
    ):
        raise isosim_client.NotFound("no such thing", remedy=remedy)
