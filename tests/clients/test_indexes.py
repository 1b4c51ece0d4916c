"""Thresholds and percentiles of brought vectors in the indexes that hold them: FAISS, Qdrant, pgvector, hnswlib.

ISOSIM_VECTORS_URL serves a domain that was calibrated on other sentences of the same kind than those in
ISOSIM_VECTORS, unit vectors (N, D) by an encoder that this environment has not.
"""

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import hnswlib
import httpx
import numpy as np
import pgserver
import psycopg
import pytest
from qdrant_client import QdrantClient, models

ENTRIES = 1000
MOST = 400  # pairs of a request: 2 MB of base64 hold 488 of 384 dimensions
RATE = 0.05  # of searches; 1,000 of them tell it by 0.014 (95 %)


@pytest.fixture(scope="module")
def api() -> httpx.Client:
    return httpx.Client(base_url=os.environ["ISOSIM_VECTORS_URL"], timeout=60)


@pytest.fixture(scope="module")
def unseen() -> Any:
    return np.load(os.environ["ISOSIM_VECTORS"])


def faiss_products(entries: Any, queries: Any, _: Path) -> tuple[Any, Any]:
    index = faiss.IndexFlatIP(entries.shape[1])
    index.add(entries)
    values, rows = index.search(queries, 5)
    return values, rows


def faiss_squares(entries: Any, queries: Any, _: Path) -> tuple[Any, Any]:
    index = faiss.IndexFlatL2(entries.shape[1])
    index.add(entries)
    values, rows = index.search(queries, 5)
    return values, rows


def hnswlib_cosines(entries: Any, queries: Any, _: Path) -> tuple[Any, Any]:
    index = hnswlib.Index(space="cosine", dim=entries.shape[1])
    index.init_index(max_elements=len(entries), ef_construction=200, M=32, random_seed=1)
    index.add_items(entries, num_threads=1)
    index.set_ef(500)
    rows, values = index.knn_query(queries, k=5, num_threads=1)
    return values, rows


def qdrant_lengths(entries: Any, queries: Any, _: Path) -> tuple[Any, Any]:
    client = QdrantClient(":memory:")
    client.create_collection("c", models.VectorParams(size=entries.shape[1], distance=models.Distance.EUCLID))
    client.upsert("c", [models.PointStruct(id=row, vector=vector.tolist()) for row, vector in enumerate(entries)])
    found = [client.query_points("c", query=query.tolist(), limit=5).points for query in queries]
    return np.array([[p.score for p in points] for points in found]), np.array(
        [[p.id for p in points] for points in found]
    )


def pgvector_cosines(entries: Any, queries: Any, folder: Path) -> tuple[Any, Any]:
    server = pgserver.get_server(folder / "postgres")
    try:
        with psycopg.connect(server.get_uri()) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(f"CREATE TEMP TABLE entries (id int, v vector({entries.shape[1]}))")
            with connection.cursor() as cursor, cursor.copy("COPY entries FROM STDIN") as copy:
                for row, vector in enumerate(entries):
                    copy.write_row((row, str(vector.tolist())))
            ask = "SELECT v <=> %s::vector AS d, id FROM entries ORDER BY d LIMIT 5"
            found = [connection.execute(ask, (str(query.tolist()),)).fetchall() for query in queries]
    finally:
        server.cleanup()
    return np.array([[d for d, _ in rows] for rows in found]), np.array([[row for _, row in rows] for rows in found])


INDEXES: dict[str, tuple[Callable[..., tuple[Any, Any]], str, int]] = {  # how, its unit, queries
    "FAISS, inner products": (faiss_products, "inner_product", 1000),
    "FAISS, squared lengths": (faiss_squares, "l2_squared", 1000),
    "hnswlib": (hnswlib_cosines, "cosine_distance", 1000),
    "Qdrant": (qdrant_lengths, "l2", 100),
    "pgvector": (pgvector_cosines, "cosine_distance", 300),
}


@pytest.mark.parametrize("name", INDEXES)
def test_scores_of_an_index_have_the_percentiles_of_its_vectors_and_thresholds_hold(
    name: str, api: httpx.Client, unseen: Any, tmp_path: Path
) -> None:
    search, unit, count = INDEXES[name]
    entries, queries = unseen[:ENTRIES], unseen[ENTRIES : ENTRIES + count]
    values, rows = search(entries, queries, tmp_path)

    pairs = [(query, entries[row]) for query, best in zip(queries, rows, strict=True) for row in best][:MOST]
    coded = [[base64.b64encode(side.astype("<f4").tobytes()).decode() for side in pair] for pair in pairs]
    sent = api.post("/similarity", json={"vectors": coded}).raise_for_status().json()
    asked = {"distances": values.ravel()[:MOST].astype(float).tolist(), "metric": unit}
    placed = api.post("/percentile", json=asked).raise_for_status().json()
    assert np.abs(np.array(placed["percentile"]) - sent["percentile"]).max() < 1e-4

    wanted = {"false_hit_rate": RATE, "gallery": ENTRIES, "unit": unit}
    limit = api.get("/domains/default/threshold", params=wanted).raise_for_status().json()["distance"]
    found = float((values[:, 0] >= limit if unit == "inner_product" else values[:, 0] <= limit).mean())
    noise = 2.6 * np.sqrt(RATE * (1 - RATE) / count)
    assert abs(found - RATE) < noise + 0.3 * RATE, found
