"""Measures sentence-transformers without a server: `python in_process.py CHECKPOINT STREAM.json SECONDS`.

Runs in an environment with sentence-transformers. Prints JSON with the sentences/s of `encode`, for batches of 2
texts (one pair) and of 32 texts.
"""

import json
import sys
import time
from pathlib import Path

from sentence_transformers import SentenceTransformer


def main(checkpoint: str, stream: str, seconds: float) -> dict[str, float]:
    model = SentenceTransformer(checkpoint, device="cpu")
    texts = json.loads(Path(stream).read_text())
    rates = {}
    for size in (2, 32):
        model.encode(texts[:size], batch_size=size, show_progress_bar=False)
        done, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            start = done % (len(texts) - size)
            model.encode(texts[start : start + size], batch_size=size, show_progress_bar=False)
            done += size
        rates[f"batches of {size}"] = round(done / spent, 1)
    return rates


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
