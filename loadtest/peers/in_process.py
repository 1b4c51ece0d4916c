"""Measures sentence-transformers without a server: `python in_process.py CHECKPOINT SECONDS`.

Runs in an environment with sentence-transformers. Reads a JSON list of texts. Prints JSON with the sentences/s of
`encode`, for batches of 2 texts (one pair) and of 32 texts.
"""

import json
import sys
import time

from sentence_transformers import SentenceTransformer

model = SentenceTransformer(sys.argv[1], device="cpu")
texts, seconds = json.load(sys.stdin), float(sys.argv[2])
rates = {}
for size in (2, 32):
    model.encode(texts[:size], batch_size=size, show_progress_bar=False)
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        start = done % (len(texts) - size)
        model.encode(texts[start : start + size], batch_size=size, show_progress_bar=False)
        done += size
    rates[f"batches of {size}"] = round(done / spent, 1)
print(json.dumps(rates))
