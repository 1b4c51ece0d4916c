"""Example answers for the documentation: answers of a running server, with rounded numbers."""

from typing import Any

from isosim import CONTRACT, __version__

ENCODER = "7f2f200472c8281e4693798439741209e11d4d1541d147bbbcf6ba00e3c59737"
VERSION: dict[str, Any] = {
    "version": 1,
    "method": "identity",
    "encoder": ENCODER,
    "created": "2026-11-24T01:45:12.341763+00:00",
    "sentences": 300,
    "servable": True,
    "damaged": False,
}
DOMAIN: dict[str, Any] = {
    "domain": "tickets",
    "champion": 1,
    "previous": None,
    "revision": 2,
    "thresholds": {"duplicates": {"fmr": 0.01}},
    "versions": [VERSION],
    "unreadable": [],
    "drift": {
        "texts": 0,
        "pairs": 1,
        "out_of_domain": None,
        "distance_mean": None,
        "distance_spread": None,
        "stability_index": None,
    },
}
JOB: dict[str, Any] = {
    "job": "7315c63f6c8e46b8b779d0de4f879e60",
    "domain": "printers",
    "encoder": ENCODER,
    "status": "queued",
    "stage": "queued",
    "progress": 0.0,
    "attempt": 0,
    "method": "auto",
    "promote": "if_better",
    "seed": 0,
    "sentences": 294,
    "labels": 0,
    "base": None,
    "created": "2026-11-24T01:45:12.341763+00:00",
    "started": None,
    "finished": None,
    "version": None,
    "promoted": None,
    "report": None,
    "error": None,
    "notices": [],
}
EMBEDDING = [-0.0408, 0.0829, -0.0878]  # shortened; a real vector has as many numbers as the encoder has dimensions
SIDES: dict[str, Any] = {
    "old": {"encoder": ENCODER, "id": "minilm", "version": 1},
    "new": {
        "encoder": "6c1f1ae008fb9b2e2eb91fddbe11c48667c51091293aac46b80c4e82be3fd602",
        "id": "minilm-int8",
        "version": 2,
    },
}
EQUATED: dict[str, Any] = {
    "similarity": 0.6978,
    "fmr": 0.01,
    "equivalent": 0.6959,
    "interval": [0.6846, 0.7074],
    "extrapolated": False,
}
MIGRATION: dict[str, Any] = {
    "domain": "tickets",
    "moved": True,
    "since": "2026-11-24T04:34:44+00:00",
    **SIDES,
    "thresholds": [EQUATED],
}
USAGE = {"prompt_tokens": 24, "total_tokens": 24}
RERANKED: dict[str, Any] = {
    "id": "12f99ee065399c07533e270a53552f55",
    "model": "isosim/tickets",
    "results": [{"index": 0, "relevance_score": 0.9879}, {"index": 1, "relevance_score": 0.409}],
    "usage": USAGE,
}
SCORED: dict[str, Any] = {
    "id": "score-aa5609cac8b58cc158517131425d426a",
    "object": "list",
    "created": 1795494915,
    "model": "isosim/tickets",
    "data": [
        {"index": 0, "object": "score", "score": 0.6817},
        {"index": 1, "object": "score", "score": 0.1402},
    ],
    "usage": USAGE,
}
MODEL: dict[str, Any] = {
    "id": "isosim/tickets",
    "object": "model",
    "max_model_len": 256,
    "created": 1795494912,
    "owned_by": "isosim",
}
TEXT_INPUT: dict[str, Any] = {"datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}}
SERVED: dict[str, Any] = {
    "name": "isosim/tickets",
    "versions": ["1"],
    "platform": "onnxruntime_onnx",
    "inputs": [{"name": name, **TEXT_INPUT} for name in ("text", "text_1", "text_2")],
    "outputs": [
        {"name": "embedding", "datatype": "FP32", "shape": [-1, 384]},
        {"name": "similarity", "datatype": "FP32", "shape": [-1]},
        {"name": "cosine", "datatype": "FP32", "shape": [-1]},
    ],
}
INFERRED: dict[str, Any] = {
    "model_name": "isosim/tickets",
    "model_version": "1",
    "outputs": [{"name": "similarity", "datatype": "FP32", "shape": [1], "data": [0.6817]}],
}
ANSWERS: dict[str, Any] = {
    "POST /similarity": {
        "domain": "tickets",
        "version": 1,
        "encoder": ENCODER,
        "method": "identity",
        "cosine": [0.6312],
        "similarity": [0.6312],
        "percentile": [0.9987],
        "extrapolated": [False],
        "probability": [0.6412],
        "flags": [{"a": [], "b": []}],
        "notices": [],
    },
    "POST /percentile": {
        "domain": "tickets",
        "version": 1,
        "encoder": ENCODER,
        "method": "identity",
        "space": "calibrated",
        "cosine": [0.31, 0.87],
        "percentile": [0.9569, 0.9998],
        "false_match_rate": [0.0431, 0.0002],
        "extrapolated": [False, False],
        "probability": [0.3208, 0.7311],
        "notices": [],
    },
    "POST /inspect": {
        "format": "csv",
        "encoding": "windows-1252",
        "encoding_certain": False,
        "separator": ";",
        "header": True,
        "sheet": None,
        "sheets": [],
        "columns": ["id", "question"],
        "column": "question",
        "rows": [["1", "Wie geht das?"], ["2", "Wo steht der Drucker?"]],
        "sentences": 2,
        "distinct": 2,
        "empty": 0,
        "too_long": 0,
        "too_long_rows": [],
        "longest": 21,
    },
    "PUT /domains/{domain}/thresholds/{name}": {
        "domain": "tickets",
        "name": "duplicates",
        "target": {"fmr": 0.01},
        "revision": 2,
        "notice": None,
    },
    "GET /domains/{domain}/thresholds": {
        "domain": "tickets",
        "version": 1,
        "revision": 2,
        "thresholds": [
            {
                "name": "duplicates",
                "target": {"fmr": 0.01},
                "similarity": 0.4251,
                "interval": [0.4183, 0.4324],
                "extrapolated": False,
                "notice": None,
            }
        ],
    },
    "GET /domains/{domain}/threshold": {
        "domain": "tickets",
        "version": 1,
        "target": {"fmr": 0.01},
        "space": "calibrated",
        "similarity": 0.4251,
        "interval": [0.4183, 0.4324],
        "pairs": 19900,
        "extrapolated": False,
    },
    "GET /domains": {
        "domains": [DOMAIN],
        "next": None,
    },
    "GET /domains/{domain}": DOMAIN,
    "GET /domains/{domain}/versions/{version}": VERSION
    | {
        "domain": "tickets",
        "files": {
            "probability.npz": "84ba458b0d5161e8ed845ca7ed1f8dc884f6970fce9372c855cb6a42312478f3",
            "reference.npz": "2c333a4330ce4b950ee45111e1f9244cd86492671cc368a63188bbda1a4354cd",
            "report.json": "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356",
        },
        "origin": None,
        "report": {},
    },
    "POST /calibrate": {"job": "7315c63f6c8e46b8b779d0de4f879e60", "domain": "printers", "status": "queued"},
    "GET /calibrate": {"jobs": [JOB]},
    "GET /calibrate/{job_id}": JOB,
    "DELETE /calibrate/{job_id}": JOB | {"status": "cancelled"},
    "POST /calibrate/{job_id}/retry": {
        "job": "7315c63f6c8e46b8b779d0de4f879e60",
        "domain": "printers",
        "status": "queued",
    },
    "POST /domains/{domain}/labels": {
        "job": "7315c63f6c8e46b8b779d0de4f879e60",
        "domain": "tickets",
        "status": "queued",
    },
    "PUT /domains/{domain}/champion": DOMAIN,
    "POST /domains/{domain}/rollback": DOMAIN,
    "POST /domains/import": {
        "versions": [
            {
                "source": "tickets@3",
                "domain": "tickets",
                "version": 3,
                "encoder": "minilm",
                "was": "champion",
                "there": False,
            }
        ],
        "thresholds": ["tickets/duplicates"],
        "kept": [],
    },
    "POST /domains/{domain}/migration": MIGRATION,
    "GET /domains/{domain}/migration": MIGRATION,
    "GET /domains/{domain}/migration/threshold": EQUATED | SIDES | {"domain": "tickets", "space": "calibrated"},
    "POST /invocations": [EMBEDDING],
    "POST /": [EMBEDDING],
    "POST /embed": [EMBEDDING],
    "POST /v1/embeddings": {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": EMBEDDING}],
        "model": "isosim/tickets",
        "usage": USAGE,
    },
    "POST /rerank": [{"index": 0, "score": 0.6757}, {"index": 1, "score": 0.1479}],
    "POST /v1/rerank": RERANKED,
    "POST /v2/rerank": RERANKED,
    "POST /v1/score": SCORED,
    "POST /score": SCORED,
    "POST /tokenize": [
        [
            {"id": 101, "text": "[CLS]", "special": True, "start": None, "stop": None},
            {"id": 2073, "text": "Where", "special": False, "start": 0, "stop": 5},
            {"id": 102, "text": "[SEP]", "special": True, "start": None, "stop": None},
        ]
    ],
    "GET /v1/models": {"object": "list", "data": [MODEL]},
    "GET /v1/models/{model}": MODEL,
    "GET /v2": {"name": "isosim", "version": __version__, "extensions": ["binary_tensor_data"]},
    "GET /v2/health/live": {"live": True},
    "GET /v2/health/ready": {"ready": True},
    "GET /v2/models/{model}/ready": {"name": "isosim/tickets", "version": "1", "ready": True},
    "GET /v2/models/{model}/versions/{version}/ready": {"name": "isosim/tickets", "version": "1", "ready": True},
    "GET /v2/models/{model}": SERVED,
    "GET /v2/models/{model}/versions/{version}": SERVED,
    "POST /v2/models/{model}/infer": INFERRED,
    "POST /v2/models/{model}/versions/{version}/infer": INFERRED,
    "GET /info": {
        "model_id": "minilm",
        "model_sha": ENCODER,
        "model_dtype": "float32",
        "served_model_name": "isosim",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": 4096,
        "max_input_length": 256,
        "max_batch_tokens": 128,
        "max_batch_requests": 64,
        "max_client_batch_size": 2048,
        "auto_truncate": True,
        "tokenization_workers": 1,
        "version": __version__,
        "contract": CONTRACT,
        "sha": None,
        "docker_label": None,
    },
    "GET /livez": {"status": "alive"},
    "GET /readyz": {"status": "ready", "encoder": ENCODER},
    "GET /console/server.json": {
        "version": __version__,
        "encoder": {"id": "minilm", "digest": ENCODER, "dim": 384},
        "keys": False,
        "limits": {
            "characters": 10000,
            "sentences": 1000000,
            "bytes": 100000000,
            "pairs": 512,
            "texts": 2048,
            "scoring_bytes": 2000000,
        },
        "fewest": {"auto": 200, "flow": 500},
        "fewest_labels": 20,
        "steady_flow": 3000,
        "promotions": ["if_better", "always", "never"],
        "domain_pattern": "[a-z0-9][a-z0-9._-]{0,63}",
    },
}
