"""The requests whose answers `answers.json` records, in their order: each may rely on what those before it left.

Three servers answer them: `small` (a tiny encoder, no keys, jobs), `keyed` (the same encoder, API keys) and `default`
(the default encoder with the calibration that it ships with).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.text import sentences

TEXTS = sentences(1400)
PAIRS = [*(TEXTS[n : n + 2] for n in range(1200, 1208, 2)), [TEXTS[1300], TEXTS[1300].replace("a ", "the ")]]
LABELS: list[list[Any]] = [
    *([text, text.replace("a ", "the ").replace("A ", "The "), 1] for text in TEXTS[:100]),
    *([text, other, 0] for text, other in zip(TEXTS[100:200], TEXTS[700:800], strict=True)),
]
ENGLISH = [
    ["A man is playing a guitar.", "Someone plays an instrument."],
    ["A man is playing a guitar.", "Shares fell in London."],
    ["How do I reset my password?", "I forgot my password, what now?"],
    ["The invoice is due on 3 May.", "The invoice is due on 5 May."],
    ["It works.", "It does not work."],
    ["Resume", "résumé"],
    ["short", "A much longer sentence, with a clause in the middle, that speaks of something else entirely. " * 3],
    ["same text", "same text"],
]
JSON, PLAIN, NDJSON = "application/json", "text/plain", "application/x-ndjson"


@dataclass(frozen=True)
class Asked:
    """One request. A path or body may hold `{job}`, the last job that was accepted."""

    server: str
    method: str
    path: str
    body: Any = None  # sent as JSON, unless it is bytes
    kind: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    waits: bool = False  # asked again until the job has ended

    @property
    def name(self) -> str:
        return f"{self.server} {self.method} {self.path}"


def requests() -> Iterator[Asked]:
    yield from first_hours()
    yield from scores("small", "news", PAIRS)
    yield from thresholds()
    yield from versions()
    yield from jobs()
    yield from compatible("small", "news", TEXTS[1200:1204])
    yield from refused()
    yield from rights()
    yield from scores("default", "default", ENGLISH)
    yield from compatible("default", "default", [text for pair in ENGLISH[:3] for text in pair])
    for target in ("fmr=0.1", "fmr=0.01", "fmr=0.001", "fmr=0.0000001", "false_hit_rate=0.01&gallery=10000"):
        yield Asked("default", "GET", f"/domains/default/threshold?{target}")
    for unit in ("cosine_distance", "l2", "l2_squared", "inner_product"):
        yield Asked("default", "GET", f"/domains/default/threshold?fmr=0.01&unit={unit}")


def first_hours() -> Iterator[Asked]:
    def get(path: str) -> Asked:
        return Asked("small", "GET", path)

    for path in ("/", "/livez", "/readyz", "/health", "/ping", "/domains", "/domains/default", "/domains/none"):
        yield get(path)
    yield get("/domains/default/threshold?fmr=0.01")
    yield Asked("small", "POST", "/similarity", {"pairs": PAIRS[:2]})
    text = "\n".join(TEXTS[:300]).encode()
    yield Asked("small", "POST", "/calibrate?domain=news&method=whitening&promote=always", text, PLAIN)
    yield Asked("small", "GET", "/calibrate/{job}", waits=True)
    yield get("/calibrate/{job}/events")
    body = {"domain": "auto", "texts": TEXTS[:400]}
    yield Asked("small", "POST", "/calibrate", body)
    yield Asked("small", "GET", "/calibrate/{job}", waits=True)
    lines = b"\n".join(b'"%s"' % text.encode() for text in TEXTS[:300])
    yield Asked("small", "POST", "/calibrate?domain=lines&method=sn", lines, NDJSON)
    yield Asked("small", "GET", "/calibrate/{job}", waits=True)
    table = ("id,question\n" + "\n".join(f'{n},"{text}"' for n, text in enumerate(TEXTS[:300]))).encode()
    yield Asked("small", "POST", "/inspect", table, "text/csv")
    yield Asked("small", "POST", "/calibrate?domain=table&method=centring&column=question", table, "text/csv")
    yield Asked("small", "GET", "/calibrate/{job}", waits=True)
    yield Asked("small", "POST", "/domains/news/labels", {"labels": LABELS, "promote": "always"})
    yield Asked("small", "GET", "/calibrate/{job}", waits=True)
    for path in ("/domains", "/domains?contains=e&limit=2", "/domains/news", "/domains/news/versions/1"):
        yield get(path)
    yield get("/domains/news/versions/2")


def scores(server: str, domain: str, pairs: list[list[str]]) -> Iterator[Asked]:
    def post(path: str, **body: Any) -> Asked:
        return Asked(server, "POST", path, body)

    yield post("/similarity", pairs=pairs, domain=domain)
    yield post("/similarity", pairs=pairs, domain=f"{domain}@1", detail=True)
    yield post(
        "/similarity", pairs=[["a", "ஒரு வாக்கியம்."], ["ఒక వాక్యం.", "మరొక మాట."], ["a", ""], ["1 2", "3"]], domain=domain
    )
    long = "word " * 600
    yield post("/similarity", pairs=[[long, long + "more"]], domain=domain)
    tei = {"source_sentence": pairs[0][0], "sentences": [pair[1] for pair in pairs]}
    yield post("/similarity", inputs=tei, parameters={"domain": domain})
    yield post("/percentile", domain=domain, cosines=[-0.5, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    yield post("/percentile", domain=domain, cosines=[0.0, 0.4, 0.8], space="raw")
    yield post("/percentile", domain=domain, distances=[0.1, 0.9], metric="cosine_distance")
    yield post("/percentile", domain=domain, distances=[0.1, 0.9], metric="l2", space="calibrated")


def thresholds() -> Iterator[Asked]:
    place = "/domains/news/threshold"
    for query in (
        "fmr=0.1",
        "fmr=0.01",
        "fmr=0.001",
        "fmr=0.000000001",
        "fmr=2",
        "precision=0.8",
        "precision=0.8&fmr=0.1",
        "recall=0.5",
        "false_hit_rate=0.1&gallery=100",
        "false_hit_rate=0.1",
        "fmr=0.01&space=raw",
        "fmr=0.01&space=calibrated",
        "",
        "fmr=0.01&unit=cosine_distance",
        "fmr=0.01&unit=l2&space=calibrated",
        "fmr=0.01&unit=l2&space=raw",
        "fmr=0.01&unit=miles",
    ):
        yield Asked("small", "GET", f"{place}?{query}")
    yield Asked("small", "GET", "/domains/news@1/threshold?precision=0.8")
    saved = "/domains/news/thresholds"
    yield Asked("small", "PUT", f"{saved}/duplicates", {"precision": 0.8})
    yield Asked("small", "PUT", f"{saved}/loose", {"fmr": 0.1})
    yield Asked("small", "PUT", f"{saved}/Wrong Name", {"fmr": 0.1})
    yield Asked("small", "PUT", f"{saved}/none", {"similarity": "high"})
    yield Asked("small", "GET", saved)
    for name in ("duplicates", "loose", "none"):
        yield Asked("small", "POST", "/similarity", {"pairs": PAIRS, "domain": "news", "threshold": name})
    yield Asked("small", "DELETE", f"{saved}/loose")
    yield Asked("small", "DELETE", f"{saved}/loose")


def versions() -> Iterator[Asked]:
    def change(method: str, path: str, body: Any = None) -> Asked:
        return Asked("small", method, path, body)

    yield change("POST", "/domains/news/rollback")
    yield change("GET", "/domains/news")
    yield change("POST", "/domains/news/rollback")
    yield change("PUT", "/domains/news/champion", {"version": 2})
    yield change("PUT", "/domains/news/champion", {"version": 9})
    yield change("PUT", "/domains/news/champion", {"version": 1, "revision": "0" * 32})
    yield change("PUT", "/domains/none/champion", {"version": 1})
    yield change("DELETE", "/domains/news/versions/2")
    yield change("GET", "/domains/news/versions/9")
    yield change("DELETE", "/domains/table")
    yield change("DELETE", "/domains/table")
    yield change("POST", "/similarity", {"pairs": PAIRS[:1], "domain": "table"})
    yield change("POST", "/similarity", {"pairs": PAIRS[:1], "domain": "lines@previous"})


def jobs() -> Iterator[Asked]:
    again = {"idempotency-key": "once"}
    body = {"domain": "once", "texts": TEXTS[:250], "method": "identity"}
    yield Asked("small", "POST", "/calibrate", body, headers=again)
    yield Asked("small", "POST", "/calibrate", body, headers=again)
    yield Asked("small", "POST", "/calibrate", body | {"seed": 1}, headers=again)
    yield Asked("small", "GET", "/calibrate/{job}", waits=True)
    yield Asked("small", "DELETE", "/calibrate/{job}")
    yield Asked("small", "GET", "/calibrate/" + "0" * 32)
    yield Asked("small", "DELETE", "/calibrate/" + "0" * 32)
    yield Asked("small", "GET", "/calibrate?limit=2")
    yield Asked("small", "GET", "/calibrate?limit=0")
    for wrong in (
        {"domain": "few", "texts": TEXTS[:50]},
        {"domain": "few", "texts": []},
        {"domain": "few", "texts": [TEXTS[0]] * 500},
        {"domain": "Bad Name", "texts": TEXTS[:250]},
        {"domain": "few", "texts": TEXTS[:250], "method": "magic"},
        {"domain": "few", "texts": TEXTS[:250], "method": "flow"},
        {"domain": "few", "texts": TEXTS[:250], "encoder": "none"},
        {"domain": "few", "texts": TEXTS[:250], "labels": [["a", "b", 1]]},
        {"texts": TEXTS[:250]},
        {"domain": "few", "texts": TEXTS[:250], "labels": [*LABELS, ["a", "b", 2]]},
    ):
        yield Asked("small", "POST", "/calibrate", wrong)
    yield Asked("small", "POST", "/calibrate?domain=few", b"one\xff line", PLAIN)
    yield Asked("small", "POST", "/calibrate?domain=few", b"{not json", NDJSON)
    yield Asked("small", "POST", "/calibrate?domain=few", b"a=b", "application/x-www-form-urlencoded")
    yield Asked("small", "POST", "/domains/news/labels", {"labels": LABELS[:3]})
    yield Asked("small", "POST", "/domains/none/labels", {"labels": LABELS})


def compatible(server: str, domain: str, texts: list[str]) -> Iterator[Asked]:
    def post(path: str, **body: Any) -> Asked:
        return Asked(server, "POST", path, body)

    yield post("/embed", inputs=texts)
    yield post("/embed", inputs=texts[0], domain=domain, normalize=False, truncate=True)
    yield post("/embed", inputs=texts[0], domain=domain, space="raw")
    yield post("/rerank", query=texts[0], texts=texts[1:], domain=domain)
    yield post("/rerank", query=texts[0], texts=texts[1:], domain=domain, raw_scores=True, return_text=True)
    yield post("/rerank", model=f"isosim/{domain}", query=texts[0], documents=texts[1:], top_n=2)
    yield post("/v2/rerank", model=f"isosim/{domain}", query=texts[0], documents=texts[1:])
    yield post("/score", model=f"isosim/{domain}", text_1=texts[0], text_2=texts[1:])
    yield post("/tokenize", inputs=texts[0])
    yield post("/v1/embeddings", model=f"isosim/{domain}", input=texts)
    yield post("/v1/embeddings", model=f"isosim/{domain}:raw", input=texts[0], encoding_format="base64", dimensions=16)
    yield post("/v1/embeddings", model="other", input=texts)
    yield post("/v1/embeddings", model="isosim", input=[])
    yield post("/v1/embeddings", model="isosim", input=texts[0], user="someone", unknown=1)
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [texts[0]]}
    yield post(f"/v2/models/isosim%2F{domain}/infer", inputs=[tensor])
    for path in ("/v1/models", f"/v1/models/isosim/{domain}", "/v1/models/none", "/v2", "/v2/health/ready", "/info"):
        yield Asked(server, "GET", path)
    yield Asked(server, "GET", f"/v2/models/isosim%2F{domain}")


def refused() -> Iterator[Asked]:
    def post(path: str, body: Any, kind: str = JSON) -> Asked:
        return Asked("small", "POST", path, body, kind)

    pair = [["a", "b"]]
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"pairs": []},
        {"pairs": [["a"]]},
        {"pairs": [["a", 1]]},
        {"pairs": "ab"},
        {"pairs": pair, "domian": "news"},
        {"pairs": pair, "domain": 3},
        {"pairs": pair, "domain": "UPPER"},
        {"pairs": pair, "domain": "none"},
        {"pairs": [["a", "b"]] * 513},
        {"pairs": [["a" * 10_001, "b"]]},
        {"pairs": pair, "inputs": {}},
        {"pairs": pair, **{f"k{n}": 0 for n in range(20)}},
        {"pairs": pair, "domain": "news@99"},
    )
    for body in bodies:
        yield post("/similarity", body)
    yield post("/similarity", b'{"pairs": [["a", "b"]')
    yield post("/similarity", b'{"pairs": [["a", NaN]]}')
    yield post("/similarity", b"\xff\xfe")
    yield post("/similarity", b"pairs=a", "application/x-www-form-urlencoded")
    yield post("/similarity", b'{"pairs": [["%s", "b"]]}' % (b"a" * 2_100_000))
    yield post("/similarity?domain=news", {"pairs": pair})
    yield post("/embed", {"input": "a"})
    yield post("/embed", {"inputs": "a", "dimensions": 7})
    yield post("/rerank", {"query": "a", "texts": []})
    yield post("/rerank", {"query": "a", "texts": ["b"], "domian": "news"})
    yield post("/percentile", {"cosines": [2.0]})
    yield post("/nothing", {})
    yield Asked("small", "GET", "/similarity")
    yield Asked("small", "GET", "/domains?limi=3")
    yield Asked("small", "PUT", "/domains", {})
    yield Asked("small", "POST", "/similarity", {"pairs": pair}, headers={"origin": "https://other.example"})
    yield Asked("small", "GET", "/domains", headers={"host": "isosim.example"})


def rights() -> Iterator[Asked]:
    pairs = {"pairs": PAIRS[:1]}
    for key in ("", "wrong", "reader", "fitter", "narrow", "owner"):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        yield Asked("keyed", "POST", "/similarity", pairs, headers=headers)
        yield Asked("keyed", "POST", "/similarity", pairs | {"domain": "mine"}, headers=headers)
        yield Asked("keyed", "GET", "/domains", headers=headers)
        yield Asked("keyed", "POST", "/calibrate", {"domain": "mine", "texts": TEXTS[:10]}, headers=headers)
        yield Asked("keyed", "DELETE", "/domains/default", headers=headers)
    yield Asked("keyed", "GET", "/livez")
