"""Names of domains, models and jobs that mean mischief: no path is made of them, in the routes and in the stores."""

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from isosim.encoders.store import EncoderArtifact
from isosim.errors import InvalidInput, NotFound
from isosim.scoring.calibration import DOMAIN_REF
from tests.processes import Serve, Server, wait_until
from tests.stores import domains_of, jobs_of, publish
from tests.text import sentences

CANARY = "canary of the test"
VERSION = (
    '{"number": 1, "encoder": "e", "encoder_id": "e", "method": "identity", "files": {}, "upload": "1", "created": ""}'
)
PARTS = [
    "..", ".", "/", "\\", "\0", "\n", "\r\n", " ", "%2e", "%2f", "%00", "@", "@1", "@previous", ":raw", "~", "$(id)",
    "`id`", "a", "default", "outside", "domains", "jobs", "encoders", "versions", "changes.json", "é", "ａ", "\u202e",
    "\ud83d", "..;", "*", "?", "[a-z]", "{}", "{domain}", "A", "con", "_", "-", "x" * 65, "x" * 5000, "'", '"',
    "<script>", "1", "١", ".lock", "#", ";",
]  # fmt: skip
nasty = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("".join) | st.text(min_size=1, max_size=20)
names = nasty.filter(lambda text: not DOMAIN_REF.fullmatch(text))
sendable = names.map(lambda text: text.encode("utf-8", "replace").decode())
relaxed = settings(max_examples=60, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and beside it and in it what a path that leads outside would find."""
    folder = tmp_path_factory.mktemp("names")
    for outside in (folder, folder / "store", folder / "store" / "versions"):
        leave_outside(outside)
    return folder


def leave_outside(folder: Path) -> None:
    """A domain's record and files, a job's record and other files that hold the canary, where no store keeps them."""
    (folder / "outside" / "1").mkdir(parents=True)
    record = f'{{"thresholds": {{"{CANARY}": {{"fmr": 0.1}}}}, "versions": {{"1": {VERSION}}}}}'
    for file in ("outside.json", "outside/outside.json"):
        (folder / file).write_text(record)
    for file in ("outside/1/manifest.json", "outside/1/report.json", "outside/job.json"):
        (folder / file).write_text(f'{{"canary": "{CANARY}"}}')


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@relaxed
@given(names)
@example("../../outside")
@example("../outside")
@example("..")
@example("")
@example("ok\n")
@example("ok/..")
@example("ok ")
@example("x" * 65)
def test_no_store_makes_a_path_of_a_wrong_name(place: Path, tiny: EncoderArtifact, name: str) -> None:
    store, jobs = domains_of(place / "store"), jobs_of(place / "store")
    before = tree(place)
    calls: list[Callable[[], object]] = [
        lambda: store.read(name), lambda: store.stamp(name), lambda: store.report(name, 1), lambda: store.load(name, 1),
        lambda: store.delete(name, 1), lambda: store.prune(name, 1),
        lambda: store.promote(name, "digest", 1), lambda: store.rollback(name, "digest"),
        lambda: store.set_target(name, "a", None), lambda: publish(store, name, tiny),
        lambda: store.remove(name), lambda: store.was_there(name), lambda: store.repair(name),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    for ask in (jobs.read, jobs.cancel):
        with pytest.raises(NotFound):
            ask(name)
    assert tree(place) == before
    assert list(store.names()) == []


def test_a_file_that_is_no_record_is_no_domain(tmp_path: Path) -> None:
    """What a volume brings along, or a hand has left, is passed over."""
    (tmp_path / "domains" / "lost+found").mkdir(parents=True)
    for name in (".Trash.json", "UPPER.json", "a b.json", "lost+found.json", "lost+found/d.json", "notes.txt", "d"):
        (tmp_path / "domains" / name).write_text("{}")
    store = domains_of(tmp_path)
    assert list(store.names()) == []
    with pytest.raises(InvalidInput):
        store.stamp("UPPER")


@pytest.fixture(scope="module")
def reached(place: Path, tiny_store: Path, module_serve: Serve) -> Server:
    """A server on the store beside what a path that leads outside would find."""
    shutil.copytree(tiny_store / "encoders", place / "store" / "encoders", dirs_exist_ok=True)
    return module_serve(model_store=place / "store", encoder="tiny")


@relaxed
@given(sendable)
@example("../../outside")
@example("%2e%2e%2foutside")
@example("..%2f..%2foutside")
@example("\0")
@example("default\n")
@example("default/../../outside")
@example("..\\outside")
@example("....//outside")
def test_no_route_takes_a_wrong_name_for_a_domain(reached: Server, name: str) -> None:
    client, at = reached.client, quote(name, safe="").replace(".", "%2E")  # which no client resolves
    asked = [
        client.get(f"/domains/{at}"), client.get(f"/domains/{at}/versions/1"),
        client.get(f"/domains/{at}/threshold", params={"fmr": 0.1}),
        client.put(f"/domains/{at}/champion", json={"version": 1}), client.post(f"/domains/{at}/rollback"),
        client.delete(f"/domains/{at}/versions/1"),
        client.post(f"/domains/{at}/labels", json={"labels": [["a", "b", 1]]}),
        client.post("/similarity", json={"pairs": [["a", "b"]], "domain": name}),
        client.post("/embed", json={"inputs": "a", "domain": name}),
        client.post("/calibrate", json={"domain": name, "texts": sentences(200)}),
        client.post("/calibrate", params={"domain": name}, content=b"a", headers={"content-type": "text/plain"}),
        client.post("/v1/embeddings", json={"model": f"isosim/{name}", "input": "a"}),
        client.get(f"/v1/models/isosim/{at}"), client.get(f"/v2/models/isosim/{at}"),
        client.get(f"/v2/models/isosim/versions/{at}"),
        client.get(f"/calibrate/{at}"), client.delete(f"/calibrate/{at}"), client.get(f"/domains/{at}/history"),
        client.get(f"/calibrate/{at}/events"), client.get(f"/console/{at}"), client.get(f"/docs/{at}"),
    ]  # fmt: skip
    for response in asked:
        if name.endswith("\n") and "models/isosim" in response.request.url.path:
            continue  # the router passes over a path's last line break; the name without it is what is checked
        assert response.status_code in (307, 308, 400, 404, 405, 422), (response.request.url, response.text[:300])
        assert CANARY not in response.text


def test_mischief_leaves_the_store_as_it_was(reached: Server, place: Path) -> None:
    """The same by hand, with an idempotency key that is a path, and the store compared."""
    reached.client.get("/domains")
    before, store = tree(place), place / "store"
    for name in ("..%2foutside", "%2e%2e/outside", "..%5coutside", "....//outside", "..%252foutside"):
        for path in (f"/domains/{name}", f"/domains/{name}/versions/1", f"/calibrate/{name}"):
            for method in ("GET", "DELETE", "PUT", "POST"):
                response = reached.client.request(method, path, json={"version": 1})
                assert response.status_code in (404, 405, 422), (path, response.text)
                assert CANARY not in response.text
    body = {"domain": "d", "texts": sentences(200), "method": "identity"}
    job = reached.client.post("/calibrate", json=body, headers={"idempotency-key": "../../../outside/1"}).json()["job"]
    assert reached.wait_for(job)["status"] == "succeeded"
    allowed = (f"jobs/{job}.json", "domains", "versions/d", "changes.json", "champions.json", ".locks")
    rooms = {f"store/{name}" for name in ("versions", "jobs", "input", "open")}
    names = tuple(f"store/{name}" for name in allowed)
    wait_until(lambda: all(path.startswith(names) for path in tree(place) - before - rooms))
    assert [*(store / "domains").glob("*.json")] == [store / "domains" / "d.json"]
