"""Matches over HTTP, run by the server's own worker on a small encoder."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from isosim.jobs.matches import PREFIX
from isosim.jobs.tables import open_table
from tests.processes import Serve, Server, wait_until
from tests.security.conftest import bearer, key_file
from tests.text import sentences

KEYS = {
    "anna": "read,calibrate", "bert": "read", "admin": "read,calibrate,admin", "others": "read,admin domains=team-*",
}  # fmt: skip
ANNA, BERT, ADMIN, OTHERS = KEYS
MEANT = 600  # so many of the most alike pairs mean the same, unless they name different years
PLANTED = 40  # sentences that occur twice, the second time in capital letters, which the encoder does not tell apart
TEXTS = sentences(300)
ROWS = [*TEXTS, *(text.upper() for text in TEXTS[:PLANTED]), TEXTS[7]]


def table(texts: list[str]) -> bytes:
    """A CSV with a text and two other columns; one has cells that a spreadsheet would run."""
    file = io.StringIO()
    csv.writer(file).writerows([("id", "text", "note"), *((n, text, "=1+1") for n, text in enumerate(texts))])
    return file.getvalue().encode()


FILE = table(ROWS)


@pytest.fixture(scope="module")
def server(module_serve: Serve, module_store: Path) -> Server:
    keys = key_file(module_store.parent, KEYS)
    return module_serve(model_store=module_store, encoder="tiny", api_keys_file=keys)


def post(server: Server, key: str = ANNA, query: str = "", **files: bytes) -> httpx.Response:
    parts = {name: (f"{name}.csv", content) for name, content in files.items()}
    return server.client.post(f"/matches?column=text{query}", files=parts, headers=bearer(key))


def get(server: Server, path: str, key: str = ANNA) -> httpx.Response:
    return server.client.get(f"/matches/{path}", headers=bearer(key))


def ended(server: Server, response: httpx.Response, key: str = ANNA) -> dict[str, Any]:
    assert response.status_code == 202, response.text
    job = response.json()["job"]

    def state() -> Any:
        found = get(server, job, key).json()
        return found if found["status"] not in ("queued", "running", "publishing") else None

    found: dict[str, Any] = wait_until(state, 300)
    return found


@pytest.fixture(scope="module")
def matched(server: Server) -> dict[str, Any]:
    """The duplicates of FILE."""
    found = ended(server, post(server, a=FILE))
    assert found["status"] == "succeeded", found
    return found


def judge(server: Server, job: str, labels: list[dict[str, Any]], key: str = ANNA) -> httpx.Response:
    return server.client.post(f"/matches/{job}/labels", json={"labels": labels}, headers=bearer(key))


def rows_of(server: Server, job: str, query: str = "") -> list[dict[str, Any]]:
    response = get(server, f"{job}/result?{query}")
    assert response.status_code == 200, response.text
    return [orjson.loads(line) for line in response.content.splitlines()]


def test_duplicates_come_first_with_their_rows_and_columns(server: Server, matched: dict[str, Any]) -> None:
    assert (matched["rows"], matched["distinct"], matched["copies"]) == ([341], [340], [1])
    assert matched["scale"]["domain"] is None
    assert matched["pairs"] == 340 * 339 // 2
    assert matched["files"] == ["a.csv"]
    rows = rows_of(server, matched["job"], f"at_most={PLANTED + 1}")
    copy, *pairs = rows
    assert (copy["row_a"], copy["row_b"], copy["similarity"]) == (9, 342, 1.0)  # line 1 names the columns
    assert {(row["row_a"], row["row_b"]) for row in pairs} == {(n + 2, n + 302) for n in range(PLANTED)}
    assert all(row["text_a"] == ROWS[row["row_a"] - 2] and row["id_b"] == str(row["row_b"] - 2) for row in rows)
    assert all(row["numbers_differ"] is row["negation_differs"] is False for row in rows)
    scores = [row["similarity"] for row in rows_of(server, matched["job"])]
    assert scores == sorted(scores, reverse=True)
    assert all(0.9 < row["percentile"] <= 1 and row["probability"] is None for row in pairs)
    assert (copy["percentile"], copy["probability"]) == (None, None)


def test_a_target_cuts_where_the_answer_says(server: Server, matched: dict[str, Any]) -> None:
    job = matched["job"]
    for query in ("", "similarity=0.9", "fmr=0.01", "fmr=0.01&confidence=0.95"):
        state = get(server, f"{job}?{query}").json()
        pairs = rows_of(server, job, query)[1:]
        assert len(pairs) == state["answer"]["passing"]
        assert all(pair["similarity"] >= state["answer"]["similarity"] for pair in pairs)
        assert state["answer"]["precision"] is None
        assert "not judged" in state["answer"]["notices"][0]
    middle, bound = (get(server, f"{job}?fmr=0.01{more}").json()["answer"] for more in ("", "&confidence=0.95"))
    assert bound["similarity"] > middle["similarity"]
    assert sum(matched["histogram"]["compared"]) == matched["pairs"]
    low = get(server, f"{job}?similarity=-1").json()["answer"]
    assert low["passing"] == matched["candidates"]
    assert low["similarity"] == pytest.approx(matched["floor"], abs=1e-6)


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("precision=0.9", 409, "needs judged pairs"),
        ("fmr=0.01&similarity=0.5", 422, "give one of them"),
        ("similarity=0.5&confidence=0.95", 422, "goes with a target"),
        ("confidence=0.95", 422, "goes with a target"),
        ("fmr=0.01&confidence=0.8", 422, "only 0.95"),
        ("threshold=strict", 422, "scale of its own"),
        ("fmr=7", 422, "less than 1"),
        ("fmr=1e-7", 422, "or judge pairs, and ask for a precision"),
    ],
)
def test_targets_that_cannot_be_used(
    server: Server, matched: dict[str, Any], query: str, status: int, words: str
) -> None:
    for path in ("", "/result"):
        response = get(server, f"{matched['job']}{path}?{query}")
        assert (response.status_code, words in response.json()["error"]) == (status, True), response.text


def test_another_key_sees_nothing(server: Server, matched: dict[str, Any]) -> None:
    job = matched["job"]
    for method, path in (("GET", ""), ("GET", "/events"), ("GET", "/result"), ("GET", "/label"), ("DELETE", "")):
        response = server.client.request(method, f"/matches/{job}{path}", headers=bearer(BERT))
        assert (response.status_code, response.json()["error"]) == (404, f"no match {job!r}")
    assert judge(server, job, [{"pair": 0, "label": 1}], BERT).status_code == 404
    assert server.client.get(f"/calibrate/{job}", headers=bearer(ANNA)).status_code == 404
    assert get(server, job, OTHERS).status_code == 404  # an admin of other domains
    assert server.client.get("/matches", headers=bearer(OTHERS)).json()["matches"] == []
    lists = {key: server.client.get("/matches", headers=bearer(key)).json()["matches"] for key in (ANNA, BERT, ADMIN)}
    assert [any(one["job"] == job for one in lists[key]) for key in (ANNA, BERT, ADMIN)] == [True, False, True]
    assert server.client.get("/calibrate", headers=bearer(ADMIN)).json()["jobs"] == []
    assert get(server, job, ADMIN).status_code == 200
    assert server.client.get("/matches").status_code == 401


def test_the_forms_of_a_result(server: Server, matched: dict[str, Any]) -> None:
    job = matched["job"]
    content = get(server, f"{job}/result?format=csv&at_most=3").content
    names, *cells = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
    lines = rows_of(server, job, "at_most=3")
    assert [dict(zip(names, row, strict=True))["text_b"] for row in cells] == [row["text_b"] for row in lines]
    assert cells[0][names.index("note_a")] == "'=1+1"  # a spreadsheet would compute it
    book = open_table(io.BytesIO(get(server, f"{job}/result?format=xlsx&at_most=3").content), "xlsx", sheet="matches")
    plain = ["text A", "text B", "how sure they mean the same", "notes"]
    technical = ["row A", "row B", "similarity", "adjusted", "percentile", "label", "pair"]
    assert book.columns == [*plain, "id (A)", "note (A)", "id (B)", "note (B)", *technical]
    first = dict(zip(book.columns, book.first[0], strict=True))
    assert (first["note (A)"], first["notes"], first["text B"]) == ("=1+1", "the same text", lines[0]["text_b"])
    for form, title, value in (("best", "match found", "yes|no"), ("clusters", "group", r"\d+")):
        other = open_table(
            io.BytesIO(get(server, f"{job}/result?format=xlsx&form={form}").content), "xlsx", sheet="matches"
        )
        assert other.columns[0] == title
        assert all(re.fullmatch(value, row[0]) for row in other.first), form
    content = get(server, f"{job}/result?format=xlsx&similarity=0.9").content
    worth = {row[0]: row[1:] for row in open_table(io.BytesIO(content), "xlsx", sheet="figures").first}
    answer = get(server, f"{job}?similarity=0.9").json()["answer"]
    assert worth["asked for: similarity"][0] == "0.9"
    assert worth["pairs of different texts that pass"][0] == str(answer["passing"])
    assert worth["notice"][0] == answer["notices"][-1]
    assert all(worth[f"column: {title}"][0] for title in technical)
    best = rows_of(server, job, "form=best")
    assert [row["row_a"] for row in best] == [*range(2, 343)]
    assert {row["row_a"]: row["row_b"] for row in best}[5] == 305
    matches = {row["row_a"]: row["row_b"] for row in best}
    assert (matches[342], matches[9]) == (9, 342)
    for query in ("similarity=0.3", "similarity=0.6", "similarity=0.9", "similarity=1"):
        found = [row["row_b"] for row in rows_of(server, job, f"form=best&{query}")]
        assert get(server, f"{job}?{query}").json()["answer"]["matched_rows"] == [len(found) - found.count(None)]


def test_clusters_hold_the_copies(server: Server, matched: dict[str, Any]) -> None:
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in rows_of(server, matched["job"], "form=clusters&similarity=1"):
        groups.setdefault(row["cluster"], []).append(row)
    members = [[row["row"] for row in group] for group in groups.values()]
    assert members[0] == [9, 309, 342]
    assert sorted(map(sorted, members[1:])) == [[n + 2, n + 302] for n in range(PLANTED) if n != 7]
    for group in groups.values():
        assert [row["central"] for row in group] == [True, *[False] * (len(group) - 1)]
        assert all(row["size"] == len(group) and row["lowest_similarity"] > 0.999 for row in group)


def test_judgements_say_what_a_threshold_is_worth(server: Server, matched: dict[str, Any]) -> None:
    job = matched["job"]

    drawn: list[int] = []
    for _ in range(3):
        pairs = get(server, f"{job}/label?count=20&precision=0.9").json()["pairs"]
        drawn += [pair["pair"] for pair in pairs]
        answer = judge(
            server, job, [{"pair": one["pair"], "label": int(one["a"] == one["b"].capitalize())} for one in pairs]
        )
        assert answer.status_code == 200, answer.text
    assert len(set(drawn)) == len(drawn) == answer.json()["judged"] == 60
    assert answer.json()["unknown"] == 0
    state = get(server, f"{job}?precision=0.9").json()
    found = state["answer"]
    assert state["judged"] == found["judged"] == 60
    counts = state["histogram"]
    assert (sum(counts["matches"]), sum(counts["others"])) == (answer.json()["matches"], 60 - answer.json()["matches"])
    assert counts["matches"][-1] > 0  # capital letters do not lower a similarity
    assert found["precision"] >= 0.9
    assert found["passing"] == len(rows_of(server, job, "precision=0.9")) - 1
    assert rows_of(server, job, "precision=0.9")[1:4] == rows_of(server, job, "precision=0.9&skip=1&at_most=3")
    best, *_, worst = rows_of(server, job, "similarity=-1")[1:]
    assert (best["probability"] > 0.8, worst["probability"] < 0.2) == (True, True)
    judged = rows_of(server, job, "form=judged&similarity=1")
    assert len(judged) == 60
    assert all(row["label"] == int(row["a"].lower() == row["b"].lower()) for row in judged)
    assert found["confirmed"] == sum(row["label"] for row in judged)
    [listed] = [
        one for one in server.client.get("/matches", headers=bearer(ANNA)).json()["matches"] if one["job"] == job
    ]
    assert (listed["judged"], listed["until"] is not None, listed["candidates"]) == (60, True, None)
    judged_pairs_follow_their_judgement(server, job, judged)
    chosen_pairs_follow_their_judgement_and_tell_nothing_of_others(server, job, judged)
    assert sum(row["weight"] for row in judged) == pytest.approx(matched["candidates"])  # together they stand for all
    table = get(server, f"{job}/result?form=judged&format=csv").content
    headers = bearer(ANNA) | {"content-type": "text/csv"}
    read = server.client.post("/inspect?give=labels", content=table, headers=headers).content.splitlines()
    assert [*map(orjson.loads, read)] == [[row[name] for name in ("a", "b", "label", "weight")] for row in judged]
    repeated = judge(
        server, job, [{"pair": drawn[0], "label": None}, {"a": TEXTS[0].upper(), "b": TEXTS[0], "label": 1}]
    )
    assert repeated.json()["judged"] in (59, 60)  # the second may have been drawn before
    notices = get(server, f"{job}?similarity=0.9").json()["answer"]["notices"]
    assert any("pairs were not chosen by whether they match" in notice for notice in notices)
    assert judge(server, job, [{"a": "another", "b": "text", "label": 1}]).json()["unknown"] == 1
    for pair, label in ((matched["candidates"], 1), (0, 2)):
        assert judge(server, job, [{"pair": pair, "label": label}]).status_code == 422
    wrong = judge(server, job, [{"pair": -1, "label": 1}])
    assert wrong.status_code == 422
    assert wrong.json()["error"].startswith("labels[0].pair: Input should be greater than or equal to 0")


def judged_pairs_follow_their_judgement(server: Server, job: str, judged: list[dict[str, Any]]) -> None:
    """Every form leaves out the pairs that were judged different, says how many, and has those that were judged the
    same, whatever their similarity."""
    different = [row for row in judged if row["label"] == 0]
    low = [row for row in judged if row["pair"] == max(row["pair"] for row in judged)]
    assert judge(server, job, [{"pair": low[0]["pair"], "label": 1}]).status_code == 200
    same = {row["pair"]: row for row in [*judged, *low] if row["label"] == 1 or row is low[0]}
    out = {row["pair"]: row for row in different if row["pair"] not in same}
    for query in ("similarity=-1", "similarity=0.9", "precision=0.9"):
        answer = get(server, f"{job}?{query}").json()["answer"]
        rows = rows_of(server, job, query)[1:]
        assert [row["pair"] for row in rows] == sorted({row["pair"] for row in rows})  # a pair's number is its place
        assert len(rows) == answer["passing"]
        assert {row["pair"] for row in rows if row["label"] is not None} == same.keys()
        assert all(row["similarity"] >= answer["similarity"] or row["label"] == 1 for row in rows)
        assert answer["confirmed"] == len(same)
        assert answer["confirmed_below"] == sum(row["similarity"] < answer["similarity"] for row in rows)
        assert answer["left_out"] == sum(row["similarity"] >= answer["similarity"] for row in out.values())
        best = rows_of(server, job, f"form=best&{query}")
        assert {frozenset((row["row_a"], row["row_b"])) for row in best if row["row_b"]}.isdisjoint(
            frozenset((row["row_a"], row["row_b"])) for row in out.values()
        )
        assert answer["matched_rows"] == [sum(row["row_b"] is not None for row in best)]
        cluster = {row["row"]: row["cluster"] for row in rows_of(server, job, f"form=clusters&{query}")}
        for row in out.values():
            assert row["row_a"] not in cluster or cluster[row["row_a"]] != cluster.get(row["row_b"])
        assert all(cluster[row["row_a"]] == cluster[row["row_b"]] for row in same.values())
        for form, stated in (
            ("pairs", str(answer["left_out"])),
            ("clusters", str(answer["left_out"])),
            ("judged", None),
        ):
            response = get(server, f"{job}/result?form={form}&format=csv&{query}")
            assert response.headers.get("x-isosim-left-out") == stated
        content = get(server, f"{job}/result?format=xlsx&{query}").content
        worth = {row[0]: row[1:] for row in open_table(io.BytesIO(content), "xlsx", sheet="figures").first}
        assert worth["left out, because they were judged different"][0] == str(answer["left_out"])
    assert judge(server, job, [{"pair": low[0]["pair"], "label": 0}]).status_code == 200


def chosen_pairs_follow_their_judgement_and_tell_nothing_of_others(
    server: Server, job: str, judged: list[dict[str, Any]]
) -> None:
    """They are in the result or left out of it, and neither the threshold nor what is expected of the others moves."""
    before, rows = get(server, f"{job}?precision=0.7").json()["answer"], rows_of(server, job, "precision=0.7")[1:]
    some = [row for row in rows if row["label"] is None][:8]
    labels = [{"pair": row["pair"], "label": n % 2, "chosen": True} for n, row in enumerate(some)]
    by_texts = {"a": some[0]["text_a"], "b": some[0]["text_b"], "label": 0, "chosen": True}
    answer = judge(server, job, [by_texts, *labels[1:]]).json()
    assert (answer["judged"], answer["chosen"]) == (len(judged) + 8, 8)
    after = get(server, f"{job}?precision=0.7").json()["answer"]
    assert (after["judged"], after["chosen"], before["chosen"]) == (len(judged) + 8, 8, 0)
    assert after["similarity"] == before["similarity"]
    assert (after["passing"], after["confirmed"]) == (before["passing"] - 4, before["confirmed"] + 4)
    assert max(0, before["expected_false"] - 4) - 1e-6 <= after["expected_false"] <= before["expected_false"]
    out = {row["pair"] for row in some[::2]}
    assert {row["pair"] for row in rows_of(server, job, "precision=0.7")[1:]} == {row["pair"] for row in rows} - out
    stated = {row["pair"]: row for row in rows_of(server, job, "form=judged")}
    assert {pair for pair, row in stated.items() if row["chosen"]} == {row["pair"] for row in some}
    assert all(stated[row["pair"]]["weight"] == 1 for row in some)  # each stands for itself
    notices = get(server, f"{job}?precision=0.7").json()["answer"]["notices"]
    assert not any("came with the pairs' texts" in notice for notice in notices)
    some_drawn, others_drawn = (
        [one["pair"] for one in get(server, f"{job}/label?count=20&recall={recall}").json()["pairs"]]
        for recall in ("true", "false")
    )
    assert some_drawn != others_drawn
    drawn = {one["pair"] for one in get(server, f"{job}/label?count=1000").json()["pairs"]}
    assert drawn & {row["pair"] for row in some}  # whether a pair is drawn does not depend on the choice
    assert judge(server, job, [{"pair": row["pair"], "label": None} for row in some]).json()["chosen"] == 0


def test_judgements_teach_what_words_tell(server: Server) -> None:
    """Texts that differ in a number only are among the most alike, and are judged different: others come first."""
    texts = sentences(120)
    rows = [*texts, *(f"{text} in 2023" for text in texts), *(f"{text} in 2024" for text in texts)]
    job = ended(server, post(server, a=table(rows)))["job"]
    first = rows_of(server, job)[:100]
    assert {row["adjusted"] for row in first} == {None}
    pairs = get(server, f"{job}/label?count=200").json()["pairs"]
    labels = [{"pair": one["pair"], "label": int(one["pair"] < MEANT and not years(one))} for one in pairs]
    assert judge(server, job, labels).status_code == 200
    state, rows_given = get(server, f"{job}?precision=0.7").json()["answer"], rows_of(server, job, "precision=0.7")
    assert state["adjusted"] and state["passing"] == len(rows_given)
    adjusted = [row["adjusted"] for row in rows_given]
    assert adjusted == sorted(adjusted, reverse=True)
    assert all(row["adjusted"] <= row["similarity"] + 1e-6 for row in rows_given)
    assert all(row["adjusted"] >= state["similarity"] for row in rows_given if row["label"] is None)
    alike = rows_of(server, job, f"similarity=-1&at_most={len(rows_given)}")
    assert {row["adjusted"] for row in alike} == {None}
    wrong = [sum(row["numbers_differ"] for row in every) / len(every) for every in (rows_given, alike)]
    assert wrong[0] < wrong[1] - 0.05
    probabilities = [row["probability"] for row in rows_given if row["label"] is None]
    assert probabilities == sorted(probabilities, reverse=True)
    assert not get(server, f"{job}?similarity=0.9").json()["answer"]["adjusted"]
    for cluster in rows_of(server, job, "form=clusters&precision=0.7"):
        assert cluster["size"] >= 2
    assert len(get(server, f"{job}/label?count=5&precision=0.7").json()["pairs"]) == 5


def years(pair: dict[str, Any]) -> bool:
    return len({text[-4:] for text in (pair["a"], pair["b"]) if " in 202" in text}) == 2


def test_searches_with_known_answers(server: Server) -> None:
    gallery = TEXTS[:100]
    queries = [{"text": text.upper(), "match": place} for place, text in enumerate(gallery[:50])]
    body = {"queries": [*queries, *({"text": text} for text in TEXTS[100:150])], "gallery": gallery}

    def check(**more: Any) -> httpx.Response:
        return server.client.post("/matches/check", json=body | more, headers=bearer(ANNA))

    checked = check(false_hit_rate=0.05).json()
    assert (checked["queries"], checked["with_match"], checked["gallery"]) == (100, 50, 100)
    assert checked["threshold"]["wrong"] <= 0.05
    assert checked["threshold"]["found"] == 1.0
    assert (checked["promised"] is None) == bool(checked["notices"])
    strictest = check(false_hit_rate=1e-6).json()
    assert (strictest["promised"], "promises nothing" in strictest["notices"][0]) == (None, True), strictest
    assert check(queries=[{"text": "a", "match": 100}]).status_code == 422
    assert check(gallery=[]).status_code == 400
    assert check(domain="nothing").status_code == 404


def test_two_files_and_a_domain(server: Server, matched: dict[str, Any]) -> None:
    new, known = table(ROWS[300:]), table(TEXTS)
    found = ended(server, post(server, query="&domain=farm", a=new, b=known))
    assert (found["status"], found["rows"], found["scale"]["domain"]) == ("succeeded", [41, 300], "farm"), found
    assert server.client.get("/domains/farm", headers=bearer(ANNA)).json()["champion"] == 1
    best = rows_of(server, found["job"], "form=best")
    assert [(row["row_a"], row["row_b"]) for row in best[:PLANTED]] == [(n + 2, n + 2) for n in range(PLANTED)]
    assert best[-1]["row_b"] == 9
    assert found["files"] == ["a.csv", "b.csv"]
    few = get(server, f"{found['job']}?similarity=0.9").json()["answer"]["matched_rows"]
    some = [row["row_b"] for row in rows_of(server, found["job"], "form=best&similarity=0.9")]
    assert few[0] == len(some) - some.count(None) <= len(some)
    assert few[1] >= len({*some} - {None})
    content = get(server, f"{matched['job']}/result?form=best&similarity=1&format=csv").content
    names, *cells = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
    assert {len(row) for row in cells} == {len(names)}
    assert "" in {row[names.index("text_b")] for row in cells}  # also without a match
    response = get(server, f"{found['job']}/result?form=clusters")
    assert (response.status_code, "one file" in response.json()["error"]) == (422, True)
    target = {"fmr": 0.001}
    saved = server.client.put("/domains/farm/thresholds/strict", json=target, headers=bearer(ADMIN))
    assert saved.status_code == 200, saved.text
    answers = [get(server, f"{found['job']}?{query}").json()["answer"] for query in ("threshold=strict", "fmr=0.001")]
    assert answers[0] == answers[1]
    other = "id\tquestion\n" + "\n".join(f"{n}\t{text} Öl" for n, text in enumerate(TEXTS[:50]))
    query = "&domain=farm&format_b=tsv&column_b=question&charset_b=windows-1252"
    mixed = ended(server, post(server, query=query, a=new, b=other.encode("windows-1252")))
    assert rows_of(server, mixed["job"], "form=best")[0]["text_b"].endswith(" Öl")
    again = ended(server, post(server, BERT, "&domain=farm", a=new), BERT)
    assert again["scale"] == {"domain": "farm", "version": 1, "method": found["scale"]["method"]}
    assert post(server, BERT, "&domain=fresh", a=FILE).status_code == 403  # a new domain needs the scope calibrate


def test_few_texts_get_the_scale_of_default(server: Server) -> None:
    foreign = ended(server, post(server, a=table(["Das Gerät druckt nicht.", *TEXTS[:5]]).decode().encode("cp1252")))
    assert any("a guess" in notice for notice in foreign["notices"])
    body = {"a": TEXTS[:5], "b": [*TEXTS[3:9], TEXTS[3]]}
    found = ended(server, server.client.post("/matches", json=body, headers=bearer(ANNA)))
    assert (found["status"], found["scale"]["domain"], found["copies"]) == ("succeeded", "default", [0, 1])
    assert "default" in found["notices"][0]
    first = rows_of(server, found["job"])[0]
    assert (first["text_a"], first["text_b"], first["similarity"]) == (first["text_a"], first["text_a"], 1.0)


def test_judgements_in_vain_say_so(server: Server) -> None:
    job = ended(server, server.client.post("/matches", json={"a": TEXTS[:40]}, headers=bearer(ANNA)))["job"]
    asked = get(server, f"{job}/label?count=20").json()["pairs"]
    judge(server, job, [{"pair": one["pair"], "label": 0} for one in asked]).raise_for_status()
    notices = get(server, job).json()["answer"]["notices"]
    assert notices[1:] == ["none of 20 judged pairs is a match: there seem to be few or none"]
    assert "0 of them matches; there seem to be few or none" in get(server, f"{job}?precision=0.9").json()["error"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"b": FILE}, "has the file a"),
        ({"a": FILE, "b": FILE, "c": FILE}, "Too many files"),
        ({"a": b""}, "empty"),
        ({"a": b"id,text\n1,Only one.\n"}, "one text was posted"),
        ({"a": FILE, "b": b"id,text\n1,\n2,\n3,\n"}, "file b: no row has a text"),
        ({"a": b"id,text\n" + b"1,a\n" * 200_001}, "more than 200,000 sentences were posted; match a part"),
        ({"a": b"id,text\n" + b"1,a\n" * 150_000, "b": b"id,text\n" + b"1,a\n" * 50_001}, "200,001 rows"),
    ],
)
def test_files_that_cannot_be_matched(server: Server, files: dict[str, bytes], words: str) -> None:
    response = post(server, ANNA, "", **files)
    assert (response.status_code in (400, 415, 422), words in response.json()["error"]) == (True, True), response.text
    assert server.client.post("/matches", data={"a": "text"}, headers=bearer(ANNA)).status_code == 415


def test_a_charset_of_a_form_is_not_used(server: Server) -> None:
    """Decoding a field as `punycode` took 3 s for 200 kB, in which the server answered no request."""
    form = b'--x\r\ncontent-disposition: form-data; name="a-"\r\n\r\n' + b"a" * 1000 + b"\r\n--x--\r\n"
    for charset, status in (("punycode", 415), ("undefined", 415), ("UTF-8", 422)):
        head = {"content-type": f"multipart/form-data; boundary=x; charset={charset}", **bearer(ANNA)}
        assert server.client.post("/matches", content=form, headers=head).status_code == status


def test_any_number_of_rows_may_be_left_out_or_asked_for(server: Server, matched: dict[str, Any]) -> None:
    huge = 10**30
    every = rows_of(server, matched["job"])
    assert rows_of(server, matched["job"], f"skip={huge}") == rows_of(server, matched["job"], f"skip={huge}&at_most=1")
    assert rows_of(server, matched["job"], f"at_most={huge}") == every
    assert rows_of(server, matched["job"], f"skip=2&at_most={2**63 - 1}") == every[2:]


def test_two_equal_files_match_row_by_row_and_a_row_whose_only_match_is_its_copy_has_one(server: Server) -> None:
    found = ended(server, post(server, a=table(TEXTS[:250]), b=table(TEXTS[:250])))
    best = rows_of(server, found["job"], "form=best")
    assert [row["row_a"] for row in best] == [row["row_b"] for row in best]
    body = {"a": [TEXTS[0], TEXTS[50], TEXTS[0], TEXTS[90]]}
    job = ended(server, server.client.post("/matches", json=body, headers=bearer(ANNA)))["job"]
    answer = get(server, f"{job}?similarity=1").json()["answer"]
    rows = [row["row_b"] for row in rows_of(server, job, "form=best&similarity=1")]
    assert (answer["passing"], answer["matched_rows"], rows) == (0, [2], [3, None, 1, None])


def test_columns_named_as_those_of_the_result_are_told_apart(server: Server) -> None:
    named = FILE.replace(b"id,text,note", b"row,text,text_a", 1)
    found = ended(server, post(server, a=named))
    (row,) = rows_of(server, found["job"], "at_most=1")
    assert (row["text_a"], row["row_a"], row["text_a_a"]) == (TEXTS[7], 9, "=1+1")
    one = rows_of(server, found["job"], "form=clusters&similarity=1&at_most=1")[0]
    assert (one["row"], one["row_2"], one["text"]) == (9, "7", TEXTS[7])
    assert post(server, a=("text" + ",c" * 101 + "\na" + ",b" * 101).encode()).status_code == 422


def test_files_of_a_form_lie_on_disk(server: Server) -> None:
    before = server.resident_bytes()
    big = b"text\n" + b"a line of thirty characters ..\n" * 3_000_000
    response = post(server, a=big)
    assert (response.status_code, "200,000" in response.json()["error"]) == (422, True), response.text
    assert server.resident_bytes() - before < 60_000_000


def test_a_deleted_match_leaves_nothing(server: Server, module_store: Path) -> None:
    def again() -> httpx.Response:
        header = {**bearer(ANNA), "idempotency-key": "mine"}
        return server.client.post("/matches?column=text", files={"a": ("a.csv", FILE)}, headers=header)

    found = ended(server, again())
    assert again().json()["job"] == found["job"]
    folder = next(module_store.glob(f"{PREFIX}*/{found['job']}"))

    def kept() -> list[str]:
        return [match["job"] for match in server.client.get("/matches", headers=bearer(ANNA)).json()["matches"]]

    assert found["job"] in kept()
    assert server.client.delete(f"/matches/{found['job']}", headers=bearer(ANNA)).status_code == 204
    assert not [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    for path in ("", "/result", "/label"):
        assert get(server, found["job"] + path).status_code == 404
    assert found["job"] not in kept()
    assert again().json()["status"] == "queued"  # another match
