"""The offline encoder on many workers: the vectors that one would give, bit for bit."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from service.adapters.encoder_store import EncoderArtifact, EncoderStore
from service.bulk.cluster import mapped
from service.bulk.run import Running
from service.bulk.shipping import store_here
from service.core.calibration import Matrix
from service.core.errors import BackendFailure, IsosimError
from service.modelling.embed import TOKENIZED, OfflineEncoder


class EncodeWorker:
    """[where, texts] in; their vectors and numbers of tokens out."""

    def __init__(self, store: str, encoder: str, digest: str, threads: int, shipped: Any) -> None:
        self.failure: str | None = None
        try:
            seen = store_here(Path(store), encoder, digest, "encoder", shipped)
            self.encode = OfflineEncoder(EncoderStore(seen).find(f"{encoder}@{digest}"), threads)
        except (IsosimError, OSError) as error:
            self.failure = str(error)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        start, texts = orjson.loads(batch["item"][0])
        if self.failure is None:
            try:
                vectors, tokens = self.encode.counted(texts)
                return {"start": [start], "vectors": [vectors.tobytes()], "tokens": [tokens.tobytes()], "failure": [""]}
            except IsosimError as error:
                self.failure = str(error)
        return {"start": [start], "vectors": [b""], "tokens": [b""], "failure": [self.failure]}


class SpreadEncoder:
    """What a calibration asks of an encoder. Texts go out in the runs that one process would tokenize at once."""

    def __init__(self, ray: Any, artifact: EncoderArtifact, how: Running, shipped: Any, *, gpu: bool) -> None:
        self.ray, self.artifact, self.how, self.shipped, self.gpu = ray, artifact, how, shipped, gpu

    def __call__(self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None) -> Matrix:
        return self.counted(texts, progress)[0]

    def counted(
        self, texts: Sequence[str], progress: Callable[[float], None] = lambda _: None
    ) -> tuple[Matrix, npt.NDArray[np.intp]]:
        """N texts -> (N, D), and each text's tokens (N,). Raises BackendFailure."""
        dim = self.artifact.spec.dim
        vectors: Matrix = np.empty((len(texts), dim), np.float32)
        counts = np.empty(len(texts), np.intp)
        items = [
            orjson.dumps([at, list(texts[at : at + TOKENIZED])]).decode() for at in range(0, len(texts), TOKENIZED)
        ]
        arguments = {
            "store": str(self.how.store), "encoder": self.artifact.id, "digest": self.artifact.digest,
            "threads": self.how.cores, "shipped": self.shipped,
        }  # fmt: skip
        done = 0
        engines = self.how.engines(self.ray, gpu=self.gpu)
        with closing(mapped(self.ray, items, EncodeWorker, arguments, engines)) as results:
            for made in results:
                if made["failure"]:
                    raise BackendFailure(str(made["failure"]))
                start = int(made["start"])
                tokens = np.frombuffer(made["tokens"], np.intp)
                counts[start : start + len(tokens)] = tokens
                vectors[start : start + len(tokens)] = np.frombuffer(made["vectors"], np.float32).reshape(-1, dim)
                done += len(tokens)
                progress(done / len(texts))
        return vectors, counts
