"""Measures ONNX Runtime alone, the upper limit for the speed of the encoder.

`python -m loadtest.bare_session ENCODER.onnx STREAM.json SECONDS` prints JSON. STREAM.json is a list of token lists.
They are encoded in batches. The JSON has the sentences/s for each batch size, measured in two ways: one call at a time
on all cores, and parallel calls on one core each. It also has the median time (ms) of a call with two sentences (one
pair) on all cores.
"""

import itertools
import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PAIR = "a pair at a time"
PART = 2  # measurements per batch size; each takes SECONDS / (PART · number of batch sizes)


def session(path: str, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def feeds_of(stream: list[list[int]], batch: int, names: set[str]) -> list[dict[str, np.ndarray]]:
    """Padded batches of the stream, prepared in advance because only `run` is timed."""
    feeds = []
    for start in range(0, len(stream) - batch + 1, batch):
        rows = stream[start : start + batch]
        ids = np.zeros((batch, max(map(len, rows))), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        every = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        feeds.append({name: value for name, value in every.items() if name in names})
    return feeds


def rate(encoder: ort.InferenceSession, feeds: list[dict[str, np.ndarray]], seconds: float, start: int = 0) -> float:
    """Sentences per second."""
    done = 0
    began = time.perf_counter()
    for feed in itertools.islice(itertools.cycle(feeds), start, None):
        encoder.run(["pooled"], feed)
        done += len(feed["input_ids"])
        spent = time.perf_counter() - began
        if spent >= seconds:
            return done / spent
    raise AssertionError("unreachable")


def side_by_side(encoder: ort.InferenceSession, feeds: list[dict[str, np.ndarray]], seconds: float, runs: int) -> float:
    rates = [0.0] * runs

    def one(index: int) -> None:
        rates[index] = rate(encoder, feeds, seconds, index * len(feeds) // runs)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def median_ms(encoder: ort.InferenceSession, feeds: list[dict[str, np.ndarray]], seconds: float) -> float:
    """Median time (ms) of consecutive runs."""
    times = []
    until = time.perf_counter() + seconds
    for feed in itertools.cycle(feeds):
        began = time.perf_counter()
        encoder.run(["pooled"], feed)
        ended = time.perf_counter()
        times.append(ended - began)
        if ended >= until:
            break
    return 1e3 * float(np.median(times))


def main(path: str, stream_file: str, seconds: float) -> dict[str, dict[str, float]]:
    stream = json.loads(Path(stream_file).read_text())
    cores = len(os.sched_getaffinity(0))
    together, single = session(path, cores), session(path, 1)
    names = {value.name for value in together.get_inputs()}
    part = seconds / (PART * len(BATCHES))
    found: dict[str, dict[str, float]] = {"one run, all cores": {}, "a run a core": {}, PAIR: {}}
    for batch in BATCHES:
        feeds = feeds_of(stream, batch, names)
        rate(together, feeds, part / 4)
        found["one run, all cores"][str(batch)] = rate(together, feeds, part)
        found["a run a core"][str(batch)] = side_by_side(single, feeds, part, cores)
    found[PAIR]["median_ms"] = median_ms(together, feeds_of(stream, 2, names), seconds / 4)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
