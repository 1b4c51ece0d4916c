"""Export and import on running servers: a store that is lost and comes back, keys, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from isosim.store.blobs import opened
from tests.processes import Serve, Server, command, wait_until
from tests.security.conftest import bearer, key_file
from tests.stores import files_of
from tests.text import sentences

TEXTS = sentences(400)
PAIRS = [[TEXTS[i], TEXTS[i + 1]] for i in range(0, 300, 2)]
TAR = {"content-type": "application/x-tar"}


@pytest.fixture(scope="module")
def server(module_serve: Serve, module_store: Path) -> Server:
    """`news@1` (whitened) answers, with a saved threshold."""
    server = module_serve(model_store=module_store, encoder="tiny", max_calibration_bytes=2_000_000)
    server.calibrate("news", TEXTS, method="whitening")
    server.client.put("/domains/news/thresholds/duplicates", json={"fmr": 0.1}).raise_for_status()
    return server


@pytest.fixture(scope="module")
def archive(server: Server) -> bytes:
    answer = server.client.get("/domains/news/export").raise_for_status()
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["content-disposition"] == 'attachment; filename="news.tar"'
    for name in ("news@1", "news@champion"):
        assert server.client.get(f"/domains/{name}/export").raise_for_status().content == answer.content
    return answer.content


def scores(server: Server, domain: str = "news") -> Any:
    body = {"pairs": PAIRS, "domain": domain, "threshold": "duplicates"}
    answer = server.client.post("/similarity", json=body).raise_for_status().json()
    return {name: answer[name] for name in ("cosine", "similarity", "percentile", "match", "flags")}


def post(server: Server, content: bytes, key: str | None = None, **query: Any) -> httpx.Response:
    return server.client.post("/domains/import", content=content, params=query, headers=TAR | bearer(key))


def test_a_store_that_is_lost_or_damaged_comes_back_by_one_command_with_the_same_scores_bit_for_bit(
    serve: Serve, store: Path, tmp_path: Path
) -> None:
    """Its domains are destroyed, bytes and all; what is left are the encoders and the archive. One command restores."""
    given: dict[str, Any] = {"model_store": store, "encoder": "tiny"}
    server = serve(**given)
    for method in ("soft", "whitening"):
        server.calibrate("news", TEXTS, method=method, promote="always")
    server.client.put("/domains/news/thresholds/duplicates", json={"fmr": 0.1}).raise_for_status()
    before, previous = scores(server), scores(server, "news@previous")
    archive = tmp_path / "news.tar"
    done = command("domains", "export", "--all", "-o", archive, **given)
    assert done.returncode == 0, done.stderr
    server.kill()
    blobs = opened(store)
    lost = ("domains/", "versions/", "history/", "changes.json", "champions.json")
    blobs.delete([entry.key for entry in blobs.list("") if entry.key.startswith(lost)])
    unsure = command("domains", "import", archive, "--promote", **given)
    assert (unsure.returncode, "--yes" in unsure.stderr) == (1, True)
    done = command("domains", "import", archive, "--promote", "--yes", **given)
    assert "news@2 is the champion" in done.stdout, done.stderr
    new = serve(**given)
    assert (scores(new), scores(new, "news@previous")) == (before, previous)
    found = new.client.get("/domains/news").json()
    assert (found["champion"], found["previous"]) == (2, 1)
    new.kill()
    weights = files_of(store, "news", 2) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    (files_of(store, "news", 2) / "reference.npz").unlink()
    server = serve(**given)
    assert server.client.post("/similarity", json={"pairs": PAIRS, "domain": "news"}).status_code == 503
    done = command("domains", "import", archive, **given)
    assert "news@2 is there already" in done.stdout, done.stderr
    wait_until(lambda: server.client.post("/similarity", json={"pairs": PAIRS, "domain": "news"}).status_code == 200)
    assert scores(server) == before


@pytest.mark.parametrize(
    ("content", "query", "status", "said"),
    [
        (b"no archive", {}, 422, "isosim domains export"),
        (b"x" * 3_000_000, {}, 413, "at most 2000000"),
        (None, {"as": "Über uns"}, 422, "as in the query: String should match"),
        (None, {"name": "carried"}, 422, "unknown query parameter; known are as"),
    ],
)
def test_a_wrong_import_is_refused_with_the_remedy(
    server: Server, archive: bytes, content: bytes | None, query: Any, status: int, said: str
) -> None:
    answer = post(server, archive if content is None else content, **query)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]


def test_a_key_moves_its_own_domains_alone(serve: Serve, tiny_store: Path, archive: bytes, tmp_path: Path) -> None:
    shutil.copytree(tiny_store / "encoders", tmp_path / "store" / "encoders")
    keys = key_file(tmp_path, {"mine": "read,admin domains=mine", "reader": "read", "all": "admin"})
    server = serve(model_store=tmp_path / "store", encoder="tiny", api_keys_file=keys)
    assert [post(server, archive, key).status_code for key in ("reader", "mine")] == [403, 403]
    assert server.client.get("/domains", headers=bearer("reader")).json()["domains"][1:] == []
    assert post(server, archive, "mine", **{"as": "mine"}).status_code == 200
    assert post(server, archive, "all").status_code == 200
    for key, domain, status in (("mine", "mine", 200), ("mine", "news@1", 403), ("reader", "mine", 403)):
        assert server.client.get(f"/domains/{domain}/export", headers=bearer(key)).status_code == status
