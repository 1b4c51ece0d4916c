"""The way back: an earlier release on a store to which this one has written, and this one after that again."""

import json
from typing import Any

import pytest

from service.adapters.domains.store import FORMAT
from service.adapters.storage.artifacts import manifest_bytes
from tests.faults.releases import Release, ask, code_of, differences
from tests.processes import Serve, Server
from tests.text import sentences

# No text resembles many that were fitted on: among texts with equal statistics rounding decides a p-value.
PAIRS = [
    [
        "The violinist describes an empty suitcase with great care.",
        "The pilot describes the garden gate with great care.",
    ],
    ["The violinist describes a a boat.", "A violinist describes a a boat in boat."],
    ["rrrr tttt", "boat boat"],
]
TARGETS = {"strict": {"fmr": 0.01}, "search": {"false_hit_rate": 0.05, "gallery": 100}}
LABELS = [[text, text.replace("a ", "the "), 1] for text in sentences(60)]
LABELS += [[*sentences(n + 2)[n:], 0] for n in range(60)]
NAMES = ("news", "news@2", "fresh", "fresh@1", "carried@1", "default")


def write_what_only_this_release_can(server: Server) -> None:
    """Versions out of a table, with labels, with notes of where they came from; saved thresholds of each kind."""
    table = "label,question\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(sentences(600)))
    posted = server.client.post(
        "/calibrate?domain=fresh&column=question&method=whitening&promote=always", content=table,
        headers={"content-type": "text/csv"},
    )  # fmt: skip
    assert server.wait_for(posted.raise_for_status().json()["job"])["promoted"]
    posted = server.client.post("/domains/fresh/labels", json={"labels": LABELS, "promote": "always"})
    assert server.wait_for(posted.raise_for_status().json()["job"])["promoted"]
    done = server.calibrate("news", sentences(1200), method="sn", normalization="as-norm", promote="always")
    assert (done["version"], done["promoted"]) == (3, True)
    for name, target in TARGETS.items():
        server.client.put(f"/domains/news/thresholds/{name}", json=target).raise_for_status()
    archive = server.client.get("/domains/fresh/export").raise_for_status().content
    form = {"content-type": "application/x-tar"}
    server.client.post("/domains/import?as=carried", content=archive, headers=form).raise_for_status()


def told(server: Server) -> list[dict[str, Any]]:
    """What a server answers for every version, old and new."""
    asked: list[dict[str, Any]] = [
        {"path": "/similarity", "body": {"pairs": PAIRS, "domain": name, "detail": True}} for name in NAMES
    ]
    asked += [{"path": f"/domains/{name}/threshold?fmr=0.1"} for name in NAMES]
    return [one | {"status": (r := ask(server, one)).status_code, "answer": r.json()} for one in asked]


def champions(server: Server) -> dict[str, int | None]:
    return {one["domain"]: one["champion"] for one in server.client.get("/domains").json()["domains"]}


def test_an_earlier_release_serves_and_goes_on_with_what_this_one_wrote(serve: Serve, release: Release) -> None:
    """A rollback of chart or image: nothing is lost on the way back or forth again."""
    server = serve(**release.settings)
    write_what_only_this_release_can(server)
    newest = champions(server)
    server.stop()

    old = serve(**release.settings, release=release.code)
    assert code_of(old, release)
    assert champions(old) == newest
    answers = told(old)
    assert {one["status"] for one in answers} == {200}
    done = old.calibrate("fresh", sentences(500), method="centring", promote="always")
    assert (done["version"], done["promoted"]) == (3, True)
    assert old.client.post("/domains/fresh/rollback").raise_for_status().json()["champion"] == 2
    assert old.client.post("/domains/news/rollback").raise_for_status().json()["champion"] == 2
    old.client.put("/domains/news/champion", json={"version": 3}).raise_for_status()
    assert differences(old, iter(answers)) == []
    old.stop()

    again = serve(**release.settings)
    assert champions(again) == newest
    assert differences(again, iter(answers)) == []  # the same scores from either, and here perhaps more
    saved = again.client.get("/domains/news/thresholds").raise_for_status().json()["thresholds"]
    assert {one["name"]: one["target"] for one in saved} == TARGETS


@pytest.mark.parametrize("which", ["this release", "the frozen one"])
def test_a_version_of_a_later_format_is_refused_by_name_and_leaves_the_rest_alone(
    serve: Serve, release: Release, which: str
) -> None:
    """A release to come that raises FORMAT, and the way back from it."""
    settings = release.settings | ({} if which == "this release" else {"release": release.code})
    later = release.store / "domains" / "news" / "2" / "manifest.json"
    facts = json.loads(later.read_bytes()) | {"format": FORMAT + 1}
    del facts["seal"]
    later.write_bytes(manifest_bytes(facts))
    server = serve(**settings)
    refused = ask(server, {"path": "/similarity", "body": {"pairs": PAIRS, "domain": "news"}})
    assert refused.status_code == 503
    assert "newer release" in refused.json()["error"]
    films = [one for one in release.questions("/similarity") if one["body"].get("domain") == "films"]
    assert films
    assert differences(server, iter(films)) == []
    server.client.put("/domains/news/champion", json={"version": 1}).raise_for_status()
    first = [one for one in release.questions("/similarity") if one["body"].get("domain") == "news@1"]
    for one in first:
        one["body"]["domain"] = "news"
    assert first
    assert differences(server, iter(first)) == []
