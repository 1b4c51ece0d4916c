"""A server for vectors that were computed elsewhere: calibrations, scores, percentiles, thresholds; and wrong input."""

import base64
import io
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from isosim.export.brought import register
from tests.processes import Serve, Server, wait_until
from tests.text import sentences

DIM = 24
TOPICS = np.random.default_rng(1).normal(size=(12, DIM))
NPY, LINES = "application/x-npy", "application/x-ndjson"
METRICS = ("cosine_distance", "l2", "l2_squared", "inner_product")


def unit_vectors(count: int, seed: int = 0) -> Any:
    """Vectors with topics in them, of length 1. (N, D) float32"""
    rng = np.random.default_rng(seed)
    made = TOPICS[rng.integers(0, len(TOPICS), count)] + rng.normal(size=(count, DIM)) + 0.5
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


VECTORS = unit_vectors(2000)


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with encoders of vectors of length 1 and of any length; copy it before writing to it."""
    store = tmp_path_factory.mktemp("brought") / "store"
    register(store, "ours", DIM, unit=True)
    register(store, "any", DIM, unit=False)
    return store


@pytest.fixture
def ours(registered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(registered, tmp_path / "ours"))


@pytest.fixture(scope="module")
def server(module_serve: Serve, registered: Path) -> Server:
    """With `default@1`, calibrated on VECTORS, for the tests that change nothing of it."""
    store = Path(shutil.copytree(registered, registered.parent / "served"))
    served = module_serve(model_store=store, encoder="ours")
    done = job_of(served, calibrate(served, npy(VECTORS), domain="default"))
    assert done["status"] == "succeeded", done
    wait_until(lambda: post(served, "/percentile", cosines=[0.5]).status_code == 200)
    return served


def calibrate(server: Server, body: bytes | list[dict[str, Any]], kind: str = NPY, **query: Any) -> httpx.Response:
    """Posts the bytes, or entries as lines of JSON."""
    if isinstance(body, list):
        body, kind = b"\n".join(map(orjson.dumps, body)), LINES
    return server.client.post("/calibrate", content=body, headers={"content-type": kind}, params=query)


def job_of(server: Server, accepted: httpx.Response) -> dict[str, Any]:
    assert accepted.status_code == 202, accepted.text
    return server.wait_for(accepted.json()["job"])


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return server.client.post(path, json=body)


def similarity(server: Server, pairs: Any, **options: Any) -> dict[str, Any]:
    answer = post(server, "/similarity", vectors=pairs, **options)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(answer: httpx.Response, *words: str, status: int = 422) -> str:
    assert answer.status_code == status, answer.text
    body = answer.json()
    error: str = "; ".join([body["error"], *([body["remedy"]["text"]] if "remedy" in body else [])])
    assert all(word in error for word in words), error
    return error


def test_vectors_are_scored_as_lists_and_as_base64_and_the_report_says_what_was_not_judged(server: Server) -> None:
    report = server.client.get("/domains/default/versions/1").json()["report"]
    assert (report["posted"], report["distinct"], report["sentences"]) == (2000, 2000, 2000)
    assert (report["method"], report["evidence"]) == ("identity", None)
    assert set(report["not_judged"]) == {"out_of_domain", "recognition", "rawness"}
    assert report["domain_test"] is False
    fresh = unit_vectors(80, 7)
    pairs = fresh.reshape(40, 2, DIM)
    answer = similarity(server, pairs.astype(np.float64).tolist())
    exact = np.vecdot(pairs[:, 0].astype(np.float64), pairs[:, 1].astype(np.float64))
    assert np.allclose(answer["cosine"], exact, atol=1e-6)
    assert answer["similarity"] == answer["cosine"]
    assert answer["flags"] == [{"a": [], "b": []}] * 40
    assert answer["probability"] is None
    coded = [[base64.b64encode(v.tobytes()).decode() for v in pair] for pair in pairs]
    assert similarity(server, coded) == answer
    detail = similarity(server, coded[:3], detail=True)["detail"]
    assert detail.pop("pairs") == 1_999_000
    assert detail == dict.fromkeys(("out_of_domain", "tokens", "numbers_differ", "negation_differs", "words"))


TEXT_ROUTES = [
    ("/similarity", {"pairs": [["a", "b"]]}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("/embed", {"inputs": ["a"]}),
    ("/v1/embeddings", {"input": ["a"], "model": "isosim/default"}),
    ("/rerank", {"query": "a", "texts": ["b"]}),
    ("/score", {"model": "isosim/default", "text_1": "a", "text_2": ["b"]}),
    ("/tokenize", {"inputs": ["a"]}),
]


@pytest.mark.parametrize(("path", "body"), TEXT_ROUTES)
def test_text_routes_say_what_is_taken_instead(server: Server, path: str, body: dict[str, Any]) -> None:
    answer = server.client.post(path, json=body)
    assert answer.status_code == (400 if path.startswith("/v1") else 422), answer.text
    for words in ("encoder ours", "24 numbers", '"vectors": [[a, b]', "/percentile"):
        assert words.encode() in answer.content.replace(b'\\"', b'"'), answer.text


ONE = VECTORS[0].tolist()


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        *(("/similarity", {"vectors": pairs}, words) for pairs, words in (
            ([[ONE, ONE[:-1]]], ("vectors[0][1] ", "has 23 numbers")),
            ([[ONE, ONE], [[0.0] * DIM, ONE]], ("vectors[1][0]", "vector of zeros")),
            ([[ONE, ["1"] * (DIM + 1)]], ("vectors[0][1] ", "has 25 numbers")),  # before its numbers are looked at
            ([[ONE, [*ONE[:-1], "1"]]], ("vectors[0][1]", "is not a vector")),
            ([[ONE, "kein base64"]], ("vectors[0][1]", "is not a vector")),
            ([[ONE, "AAAA"]], ("vectors[0][1]", "is not a vector")),
            ([[ONE, (2 * VECTORS[0]).tolist()]], ("vectors[0][1]", "has the norm 2", "unit vectors")),
            ([[ONE, [1e39, *ONE[1:]]]], ("NaN or infinity",)),
            ([[ONE, ONE, ONE]], ("vectors[0]: List should have at most 2 items",)),
            ([[ONE, ONE]] * 513, ("at most 512",)),
        )),
        ("/similarity", {"vectors": [[ONE, ONE]], "pairs": [["a", "b"]]}, ("vectors: cannot be combined with the",)),
        ("/similarity", {"vectors": [[ONE, ONE]], "domian": "default"}, ("domian", "did you mean domain?")),
        ("/percentile", {}, ("cosines or distances",)),
        ("/percentile", {"distances": [0.1]}, ("distances: also send `metric`",)),
        ("/percentile", {"cosines": [0.1], "metric": "l2"}, ("metric: belongs to distances",)),
        ("/percentile", {"distances": [0.1], "metric": "hamming"}, ("metric",)),
        ("/percentile", {"distances": [-1.0], "metric": "l2"}, ("distances[0] is -1",)),
        ("/percentile", {"cosines": [0.1] * 10_001}, ("at most 10000",)),
    ],
    ids=count(),
)  # fmt: skip
def test_what_is_no_vector_or_score_is_named(
    server: Server, path: str, body: dict[str, Any], words: tuple[str, ...]
) -> None:
    refused(server.client.post(path, json=body), *words)


def test_an_unknown_unit_an_empty_list_and_a_nan_are_refused(server: Server) -> None:
    answer = server.client.get("/domains/default/threshold", params={"fmr": 0.1, "unit": "cosine"})
    refused(answer, "unit in the query: ", "cosine_distance", "inner_product")
    refused(post(server, "/similarity", vectors=[]), "vectors", "empty", status=400)
    nan = orjson.dumps({"vectors": [[ONE, ONE]]}).replace(b"[[[", b"[[[NaN,", 1)
    headers = {"content-type": "application/json"}
    assert server.client.post("/similarity", content=nan, headers=headers).status_code == 422


def test_vectors_of_another_encoder_are_a_conflict(server: Server) -> None:
    digest = similarity(server, [[ONE, ONE]])["encoder"]
    assert similarity(server, [[ONE, ONE]], encoder=digest)["version"] == 1
    refused(post(server, "/similarity", vectors=[[ONE, ONE]], encoder="0" * 64), digest, status=409)
    refused(post(server, "/percentile", cosines=[0.5], encoder="0" * 64), digest, status=409)
    refused(calibrate(server, npy(VECTORS), domain="d", encoder="0" * 64), digest, status=409)
    refused(calibrate(server, npy(VECTORS), domain="d", encoder="ours"), "encoder")
    assert calibrate(server, npy(VECTORS[:9]), domain="d", encoder=digest).status_code == 422


def test_only_the_cosines_own_distance_is_taken_where_lengths_are_not_one(serve: Serve, ours: Path) -> None:
    server = serve(model_store=ours, encoder="any")
    refused(post(server, "/percentile", cosines=[0.5]), "no reference", status=409)
    vectors = VECTORS * np.random.default_rng(3).uniform(0.1, 30, (2000, 1)).astype(np.float32)
    assert job_of(server, calibrate(server, npy(vectors), domain="default"))["version"] == 1
    wait_until(lambda: post(server, "/percentile", cosines=[0.5]).status_code == 200)
    assert post(server, "/percentile", distances=[0.5], metric="cosine_distance").status_code == 200
    for metric in METRICS[1:]:
        refused(post(server, "/percentile", distances=[0.5], metric=metric), "--unit-vectors")
        query = {"fmr": "0.01", "unit": metric}
        refused(server.client.get("/domains/default/threshold", params=query), "--unit-vectors")


def texts_and_vectors() -> list[dict[str, Any]]:
    return [{"vector": v.tolist(), "text": text} for v, text in zip(VECTORS, sentences(2000), strict=True)]


def test_lines_with_texts_and_labelled_pairs_of_vectors_and_of_rows(serve: Serve, ours: Path) -> None:
    server = serve(model_store=ours, encoder="ours")
    rng = np.random.default_rng(4)
    near = VECTORS[:60] + 0.05 * rng.normal(size=(60, DIM))
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    labels: list[dict[str, Any]] = [{"a": row, "b": near[row].tolist(), "label": 1} for row in range(60)]
    labels += [{"a": int(a), "b": int(b), "label": 0, "weight": 2} for a, b in rng.integers(0, 2000, (60, 2))]
    body = [*texts_and_vectors()[:1000], *labels, *texts_and_vectors()[1000:]]
    done = job_of(server, calibrate(server, body, domain="default", method="auto"))
    assert done["status"] == "succeeded", done
    report = done["report"]
    assert set(report["not_judged"]) == {"out_of_domain", "recognition"}
    assert report["labels"]["posted"] == 120
    assert (done["sentences"], done["labels"]) == (2000, 120)
    assert not list((ours / "jobs" / done["job"]).glob("*.npy"))
    wait_until(lambda: post(server, "/percentile", cosines=[0.9]).status_code == 200)
    if report["method"] == "identity":
        answer = similarity(server, [[ONE, near[0].tolist()]])
        placed = post(server, "/percentile", cosines=answer["cosine"]).json()
        assert np.allclose(placed["probability"], answer["probability"], atol=1e-6)

    given = [[VECTORS[row].tolist(), near[row].tolist(), 1] for row in (0, 0, 0, *range(60))]
    given += [[VECTORS[a].tolist(), VECTORS[b].tolist(), 0] for a, b in rng.integers(0, 2000, (60, 2))]
    lines = b"".join(orjson.dumps({"a": a, "b": b, "label": label}) + b"\n" for a, b, label in given)
    posted = server.client.post("/domains/default/labels", content=lines, headers={"content-type": LINES})
    again = job_of(server, posted)
    assert again["status"] == "succeeded", again
    texts = server.client.post("/domains/default/labels", json={"labels": [["a", "b", 1]]})
    refused(texts, "computes no vectors")


def changed(row: int, column: int, value: float) -> Any:
    vectors = VECTORS.copy()
    vectors[row, column] = value
    return vectors


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([{"vector": ONE}, {"vector": ONE[1:]}], ("line 2", "has 23 numbers")),
        ([{"vector": ONE}, {"vector": [0.0] * DIM}], ("line 2", "zeros")),
        ([{"vector": ONE}, {"vector": ONE, "text": "a"}], ("line 2", "a text to all vectors or to none")),
        ([{"vector": ONE, "text": " "}], ("line 1", "text is empty")),
        ([{"vektor": ONE}], ("line 1", 'expected {"vector": […]}')),
        ([{"vector": ONE}, {"a": 5, "b": 0, "label": 1}], ("line 2", "there is no row 5", "rows 0 to 0")),
        ([{"vector": ONE}, {"a": 0, "b": 0, "label": "yes"}], ("line 2: label: expected a number",)),
        ([{"vector": ONE}] * 300, ("1 distinct vectors", "at least 200")),
        (npy(changed(1999, 0, np.nan)), ("row 1999", "NaN")),
        (npy(VECTORS[:150]), ("150 distinct vectors", "at least 200")),
    ],
    ids=count(),
)
def test_vectors_that_cannot_be_used_are_named_and_nothing_is_kept(
    server: Server, body: bytes | list[dict[str, Any]], words: tuple[str, ...]
) -> None:
    before = sorted(server.client.get("/calibrate").json()["jobs"], key=str)
    refused(calibrate(server, body, domain="bad"), *words)
    assert sorted(server.client.get("/calibrate").json()["jobs"], key=str) == before
    assert server.client.get("/domains/bad").status_code == 404


def test_a_body_beyond_its_bound_is_refused_while_it_streams(serve: Serve, ours: Path) -> None:
    server = serve(model_store=ours, encoder="ours", max_calibration_bytes=5_000, max_calibration_sentences=100)
    refused(calibrate(server, npy(VECTORS), domain="bad"), "at most 50000", status=413)
    lying = npy(VECTORS[:3]) + VECTORS[:99].tobytes()
    refused(calibrate(server, lying, domain="bad"), "bytes follow the array")
    refused(calibrate(server, npy(VECTORS[:101]), domain="bad"), "more than 100 vectors")
    refused(calibrate(server, b"", domain="bad"), "no vector", status=400)


def test_text_and_vectors_are_told_apart(server: Server, tiny_server: Server) -> None:
    refused(calibrate(server, b"a text", "text/plain", domain="bad"), "computes no vectors", NPY)
    refused(server.client.post("/calibrate", json={"domain": "bad", "texts": sentences(300)}), "computes no vectors")
    refused(calibrate(tiny_server, npy(VECTORS), domain="bad"), "computes vectors itself")
    refused(calibrate(tiny_server, [{"vector": ONE}], domain="bad"), "line 1", "a text is wanted")
    body = {"domain": "bad", "texts": ["a"], "labels": [[[0.5] * 16, "b", 1]]}
    refused(tiny_server.client.post("/calibrate", json=body), "labels[0][0]", "should be a valid string")


def test_an_idempotency_key_knows_its_body_in_whatever_pieces_it_arrives(serve: Serve, ours: Path) -> None:
    server = serve(model_store=ours, encoder="ours")
    labels = [{"a": n, "b": n + 1, "label": n % 2} for n in range(40)]
    mixed = [entry for pair in zip(texts_and_vectors()[:40], labels, strict=True) for entry in pair]
    body, other = (b"\n".join(map(orjson.dumps, [*mixed, *texts_and_vectors()[at:]])) for at in (40, 41))
    headers, jobs = {"content-type": LINES, "idempotency-key": "k"}, set()
    for size in (len(body), 300_000, 70_000):
        pieces = (body[at : at + size] for at in range(0, len(body), size))
        answer = server.client.post("/calibrate", content=pieces, headers=headers, params={"domain": "d"})
        assert answer.status_code == 202, answer.text
        jobs.add(answer.json()["job"])
    assert len(jobs) == 1
    assert server.client.post("/calibrate", content=other, headers=headers, params={"domain": "d"}).status_code == 409


def test_an_exported_encoder_scores_vectors_too(tiny_server: Server) -> None:
    """Those that it gave to somebody get the scores of their texts; percentiles need a domain with a scale."""
    texts = sentences(6)
    pairs = [[texts[i], texts[i + 1]] for i in range(0, 6, 2)]
    by_text = post(tiny_server, "/similarity", pairs=pairs).json()
    raw = tiny_server.client.post("/embed", json={"inputs": texts, "space": "raw", "normalize": False}).json()
    by_vector = similarity(tiny_server, [[raw[i], raw[i + 1]] for i in range(0, 6, 2)])
    assert by_vector["similarity"] == by_text["similarity"]
    refused(post(tiny_server, "/percentile", distances=[0.5], metric="l2"), "no reference", status=409)
