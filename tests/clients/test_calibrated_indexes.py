"""Indexes of vectors that isosim computes, in a whitened domain: a threshold for 1 % lets 1 % of random pairs through,
in the unit that each index returns by default.

ISOSIM_OPEN_URL serves the domain `whitened`; ISOSIM_HELD_OUT is a file of other sentences of the same kind.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chromadb
import faiss
import httpx
import numpy as np
import pytest
from qdrant_client import QdrantClient, models

URL = os.environ["ISOSIM_OPEN_URL"]
MODEL, DIM = "isosim/whitened", 384
ENTRIES, QUERIES = 600, 200  # 120,000 pairs
RATE = 0.01

# Returns what the index gives for each pair of a query and an entry.
Values = Callable[[list[str], list[str], str, Path], Any]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return Path(os.environ["ISOSIM_HELD_OUT"]).read_text(encoding="utf-8").splitlines()[: ENTRIES + QUERIES]


def embedded(texts: list[str], model: str) -> Any:
    body = {"model": model, "input": texts, "dimensions": DIM}
    answer = httpx.post(f"{URL}/v1/embeddings", json=body, timeout=300).raise_for_status().json()
    return np.array([row["embedding"] for row in answer["data"]], np.float32)


def faiss_index(index: Any, entries: list[str], queries: list[str], model: str) -> Any:
    index.add(embedded(entries, model))
    return index.search(embedded(queries, model), ENTRIES)[0]


def faiss_squares(entries: list[str], queries: list[str], model: str, _: Path) -> Any:
    return faiss_index(faiss.IndexFlatL2(DIM), entries, queries, model)


def faiss_products(entries: list[str], queries: list[str], model: str, _: Path) -> Any:
    return faiss_index(faiss.IndexFlatIP(DIM), entries, queries, model)


def chroma(entries: list[str], queries: list[str], model: str, folder: Path) -> Any:
    collection = chromadb.PersistentClient(str(folder)).create_collection("entries")
    collection.add(ids=[str(row) for row in range(ENTRIES)], embeddings=embedded(entries, model))
    found = [collection.query(query_embeddings=[query], n_results=ENTRIES) for query in embedded(queries, model)]
    return [result["distances"][0] for result in found]


def qdrant_lengths(entries: list[str], queries: list[str], model: str, _: Path) -> Any:
    client = QdrantClient(":memory:")
    client.create_collection("entries", models.VectorParams(size=DIM, distance=models.Distance.EUCLID))
    points = enumerate(embedded(entries, model).tolist())
    client.upsert("entries", [models.PointStruct(id=row, vector=vector) for row, vector in points])
    found = [
        client.query_points("entries", query=query, limit=ENTRIES).points for query in embedded(queries, model).tolist()
    ]
    return [[point.score for point in points] for points in found]


INDEXES: dict[str, tuple[Values, str]] = {  # the values of an index, and their unit
    "FAISS IndexFlatL2": (faiss_squares, "l2_squared"),
    "FAISS IndexFlatIP": (faiss_products, "inner_product"),
    "Chroma": (chroma, "l2_squared"),
    "Qdrant Euclid": (qdrant_lengths, "l2"),
}


@pytest.mark.parametrize(
    ("name", "space"),
    [*((name, "calibrated") for name in INDEXES), ("FAISS IndexFlatL2", "raw")],
)
def test_a_threshold_in_the_unit_of_an_index_lets_its_share_of_random_pairs_through(
    name: str, space: str, texts: list[str], tmp_path: Path
) -> None:
    search, unit = INDEXES[name]
    model = MODEL if space == "calibrated" else f"{MODEL}:raw"
    values = np.array(search(texts[:ENTRIES], texts[ENTRIES:], model, tmp_path), np.float64)
    assert values.shape == (QUERIES, ENTRIES)

    wanted = {"fmr": RATE, "unit": unit, "space": space}
    limit = httpx.get(f"{URL}/domains/whitened/threshold", params=wanted).raise_for_status().json()
    near = limit["distance"]
    share = float((values >= near if unit == "inner_product" else values <= near).mean())
    print(f"{name}, {unit}, {space}: {share:.2%} of {values.size:,} random pairs")
    assert 0.7 * RATE <= share <= 1.4 * RATE, share

    sent = {"distances": values[0].tolist(), "metric": unit, "domain": "whitened", "space": space}
    placed = httpx.post(f"{URL}/percentile", json=sent).raise_for_status().json()
    passing = values[0] >= near if unit == "inner_product" else values[0] <= near
    assert (
        abs((np.array(placed["false_match_rate"]) <= RATE).sum() - passing.sum()) <= 1
    )  # one pair may lie at the limit
