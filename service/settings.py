"""All settings, read once by the composition roots from `ISOSIM_*`; no other module looks at the environment."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Each field's comment says how to choose it."""

    model_config = SettingsConfigDict(env_prefix="ISOSIM_", frozen=True, extra="forbid")

    # Where
    host: str = "127.0.0.1"  # any other needs keys, or allow_anonymous
    port: int = Field(default=8000, ge=0, le=65535)  # to bind
    model_store: Path = Path("model_store")  # a folder; shared by API processes and workers
    encoder: str = "minilm"  # an id in the store, or id@digest to pin one export
    redis_url: SecretStr | None = (
        None  # redis://host:6379/0; without it: in-memory cache and local worker, one API process
    )

    # Who
    api_keys_file: Path | None = None  # lines of `<sha256 of the key> <scope,scope> [name]`; re-read when it changes
    allow_anonymous: bool = False  # needed to bind another host than loopback without keys

    # Engine
    providers: tuple[str, ...] = ()  # execution providers in order; empty: CUDA where it is installed, else CPU
    runs: NonNegativeInt = 0  # batches computed side by side; 0: one a core up to 8, one on a GPU
    threads: NonNegativeInt = 0  # of one run; 0: the cores divided by the runs
    alone: bool = True  # CPU: a lone small batch runs on all cores, a fifth sooner; costs the weights' memory again
    gpu_memory_bytes: NonNegativeInt = 0  # most the encoder's arena may take on a GPU; 0: all there is
    max_batch_tokens: NonNegativeInt = 0  # padded tokens a batch; 0: 128 on a CPU (more only waits), 16384 on a GPU
    max_batch_texts: NonNegativeInt = 0  # 0: 64 on a CPU, 256 on a GPU
    max_queued_texts: PositiveInt = 4096  # admitted and unanswered; beyond it callers get 429
    max_wait: PositiveFloat = 0.6  # s a newcomer may be expected to wait for the device; beyond it callers get 429

    # Cache
    memory_cache_bytes: NonNegativeInt = 64 * 2**20  # 64 MiB hold about 35,000 vectors of 384; 0: no memory cache
    cache_precision: Literal["float32", "float16"] = "float32"  # float16 halves it, at about 1e-4 on a cosine
    redis_ttl: PositiveInt = 7 * 24 * 3600  # s a vector is kept
    redis_timeout: PositiveFloat = 0.05  # s for one lookup; slower counts as a miss

    # Limits
    max_pairs: PositiveInt = 512  # of /similarity and /score; a request of as many keeps two cores busy for seconds
    max_texts: PositiveInt = 2048  # of /embed, /v1/embeddings, /rerank; OpenAI's own limit
    max_characters: PositiveInt = 10_000  # of one text
    allow_token_ids: bool = False  # in /v1/embeddings: ids of this encoder's vocabulary; other tokenizers' are garbage
    max_body_bytes: PositiveInt = 2_000_000  # of a scoring body
    max_calibration_bytes: PositiveInt = 100_000_000  # streamed to disk
    max_calibration_sentences: PositiveInt = 1_000_000  # each takes dim × 4 bytes of the worker's memory

    # Calibration
    keep_versions: PositiveInt = 10  # a domain; champion and previous are always kept
    keep_jobs: PositiveInt = 1000  # records of ended jobs
    max_queued_jobs: PositiveInt = 100  # each holds its text on disk until it runs
    job_timeout: PositiveInt = 4 * 3600  # s; a job that takes longer is ended
    worker_threads: PositiveInt = 1  # of a calibration beside serving
    poll_seconds: PositiveFloat = 0.5  # how often the store is looked at for new champions

    # Process
    drain_delay: NonNegativeFloat = 0.0  # s after SIGTERM, not ready but serving: until a balancer has seen it
    drain_seconds: PositiveFloat = 10.0  # then: how long what is in flight may take to finish
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # no level logs texts or keys


def unread(names: Iterable[str]) -> dict[str, str | None]:
    """The `ISOSIM_*` among names of variables that are no setting, each with the setting it resembles, if any.

    pydantic-settings passes over them in silence, and what was meant stays at its default.
    """
    prefix = Settings.model_config["env_prefix"]
    known = [prefix + field.upper() for field in Settings.model_fields]
    odd = sorted(name for name in names if name.upper().startswith(prefix) and name.upper() not in known)
    return {name: next(iter(get_close_matches(name.upper(), known, 1, cutoff=0.8)), None) for name in odd}
