"""A checkpoint by its hub id, from a hub of our own on this machine."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.processes import environment

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"weights",
    "1_Pooling/config.json": b"{}",
    "2_Dense/model.safetensors": b"more weights",
    "README.md": b"---\nlicense: mit\n---\n",
    "LICENSE": b"MIT License",
    "pytorch_model.bin": b"pickled",
    "modeling_boats.py": b"code",
}
RESOLVE = """
import json
from isosim.export.checkpoints import resolve
from isosim.errors import InvalidInput
import sys
try:
    found = resolve(sys.argv[1], sys.argv[2])
    files = sorted(str(f.relative_to(found.folder)) for f in found.folder.rglob("*") if f.is_file())
    print(json.dumps({"source": found.source, "files": files}))
except InvalidInput as error:
    print(json.dumps({"error": str(error)}))
"""


class Hub(BaseHTTPRequestHandler):
    """Two revisions' names of one commit, and its files: what huggingface_hub asks for, and 404 for all else."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        repository = "/api/models/harbour/boats"
        if path in (f"{repository}/revision/v1", f"{repository}/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in FILES]
            self.answer(json.dumps({"id": "harbour/boats", "sha": COMMIT, "siblings": siblings}).encode())
        elif path == f"{repository}/tree/{COMMIT}":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}  # noqa: S324
                for name, content in FILES.items()
            ]
            self.answer(json.dumps(entries).encode())
        elif path.startswith(f"/harbour/boats/resolve/{COMMIT}/"):
            name = path.removeprefix(f"/harbour/boats/resolve/{COMMIT}/")
            self.answer(FILES[name], kind="application/octet-stream")
        else:
            self.answer(b'{"error": "not found"}', status=404)

    def answer(self, content: bytes, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", f'"{hashlib.sha256(content).hexdigest()}"')
        if status == 404:
            self.send_header("x-error-code", "RevisionNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def resolve(hub: str, home: Path, source: str, revision: str) -> Any:
    """In a process of its own: the hub's address is read when its client is imported."""
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, source, revision],
        env=environment() | {"HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_commit_behind_a_revision_is_recorded_and_only_safe_files_are_fetched(hub: str, tmp_path: Path) -> None:
    checkpoint = resolve(hub, tmp_path, "harbour/boats", "v1")
    assert checkpoint["source"] == f"harbour/boats@{COMMIT}"
    assert set(checkpoint["files"]) == set(FILES) - {"pytorch_model.bin", "modeling_boats.py"}


def test_a_revision_that_is_not_there_is_refused_in_one_line(hub: str, tmp_path: Path) -> None:
    error = resolve(hub, tmp_path, "harbour/boats", "v2")["error"]
    assert error.startswith("--encoder 'harbour/boats' could not be fetched from the hub: ")
    assert "Revision Not Found" in error
    assert "\n" not in error
