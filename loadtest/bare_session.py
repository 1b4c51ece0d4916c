"""ONNX Runtime alone on the texts of a load: the upper limit for the speed of the encoder."""

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort

from isosim.encoders.store import EncoderArtifact
from isosim.encoders.tokenizer import FastTokenizer

BATCHES = (1, 2, 4, 8, 16, 32, 64)
STREAM = 4096  # number of texts
PAIR = "a pair at a time"
Feeds = list[dict[str, np.ndarray]]
Rates = dict[str, dict[str, float]]


def session(artifact: EncoderArtifact, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(str(artifact.encoder), options, providers=["CPUExecutionProvider"])


def feeds_of(stream: list[list[int]], batch: int, names: set[str]) -> Feeds:
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


def timed(encoder: ort.InferenceSession, feeds: Feeds, seconds: float, start: int = 0) -> tuple[float, float]:
    """Sentences per second, and the median time (ms) of a run."""
    done, times = 0, []
    began = ended = time.perf_counter()
    for feed in itertools.islice(itertools.cycle(feeds), start, None):
        encoder.run(["pooled"], feed)
        times.append(-ended + (ended := time.perf_counter()))
        done += len(feed["input_ids"])
        if ended - began >= seconds:
            break
    return done / (ended - began), 1e3 * float(np.median(times))


def measure(artifact: EncoderArtifact, texts: list[str], seconds: float) -> Rates:
    """Sentences/s of each batch size, with one call at a time on all cores and with parallel calls on one core each.

    And the median time (ms) of a call with two sentences (one pair) on all cores.
    """
    tokenize = FastTokenizer(artifact.tokenizer, artifact.spec.max_length)
    stream = [list(tokens.ids) for tokens in tokenize(texts[:STREAM], "right")]
    cores = len(os.sched_getaffinity(0))
    together, single = session(artifact, cores), session(artifact, 1)
    names = {value.name for value in together.get_inputs()}
    part = seconds / (2 * len(BATCHES))
    found: Rates = {"one run, all cores": {}, "a run a core": {}}
    with ThreadPoolExecutor(cores) as pool:
        for batch in BATCHES:
            feeds = feeds_of(stream, batch, names)
            timed(together, feeds, part / 4)
            found["one run, all cores"][str(batch)] = timed(together, feeds, part)[0]
            starts = [core * len(feeds) // cores for core in range(cores)]
            runs = [pool.submit(timed, single, feeds, part, start) for start in starts]
            found["a run a core"][str(batch)] = sum(run.result()[0] for run in runs)
    return found | {PAIR: {"median_ms": timed(together, feeds_of(stream, 2, names), seconds / 4)[1]}}


def best(found: Rates) -> float:
    """The highest sentences/s."""
    return max(rate for way, rates in found.items() if way != PAIR for rate in rates.values())
