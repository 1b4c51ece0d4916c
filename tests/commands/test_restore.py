"""A store that is lost, or damaged, comes back from an archive."""

from pathlib import Path
from typing import Any

from isosim.store.blobs import opened
from tests.processes import Serve, Server, command, wait_until
from tests.stores import files_of
from tests.text import sentences

TEXTS = sentences(400)
PAIRS = [[TEXTS[i], TEXTS[i + 1]] for i in range(0, 300, 2)]


def scores(server: Server, domain: str = "news") -> Any:
    body = {"pairs": PAIRS, "domain": domain, "threshold": "duplicates"}
    answer = server.client.post("/similarity", json=body).raise_for_status().json()
    return {name: answer[name] for name in ("cosine", "similarity", "percentile", "match", "flags")}


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
