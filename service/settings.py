"""All settings, read once by the composition roots from `ISOSIM_*`; no other module looks at the environment."""

import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import (
    Field,
    FilePath,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")  # two letters at least: C: is a drive
ADDRESS = (
    "not an address like redis://user:password@host:6379/0; signs such as / # ? in a password must be "
    "percent-encoded, or the password given in ISOSIM_REDIS_PASSWORD"
)


class Settings(BaseSettings):
    """Each field's comment says how to choose it."""

    model_config = SettingsConfigDict(env_prefix="ISOSIM_", frozen=True, extra="forbid", hide_input_in_errors=True)

    # Where
    host: str = "127.0.0.1"  # any other needs keys, or allow_anonymous
    port: int = Field(default=8000, ge=0, le=65535)  # to bind
    model_store: Path = Path("model_store")  # a folder that API and workers share, or s3://bucket/prefix (how-to)
    jobs_folder: Path | None = None  # of jobs and posted text; unset: the model store; needed with s3:// without Redis
    encoder: str = "minilm"  # an id in the store, or id@digest to pin one export
    next_encoder: str | None = (
        None  # of the store; served beside it while domains move (docs/how-to/migrate-encoder.md)
    )
    redis_url: SecretStr | None = None  # redis://user:password@host:6379/0, rediss:// with TLS; without it: one process
    redis_password: SecretStr | None = None  # where a secret holds it alone, as it is; percent-encoded in redis_url
    redis_ca_file: FilePath | None = None  # PEM; authority of the server's certificate (rediss://); unset: the system's

    # Who
    api_keys_file: Path | None = None  # lines that `isosim keys new` prints (SECURITY.md); re-read when it changes
    allow_anonymous: bool = False  # needed without keys: to bind another host than loopback, and behind a proxy's name
    cors_origins: tuple[str, ...] = ()  # JSON list; web pages that may call from browsers, like https://app.example.com

    # Engine
    providers: tuple[str, ...] = ()  # execution providers in order; empty: CUDA where it is installed, else CPU
    runs: NonNegativeInt = 0  # batches computed side by side; 0: one a core up to 8, one on a GPU
    threads: NonNegativeInt = 0  # of one run; 0: the cores divided by the runs
    alone: bool = True  # CPU: a lone small batch runs on all cores, a fifth sooner; costs the weights' memory again
    gpu_memory_bytes: NonNegativeInt = 0  # most the encoder's arena may take on a GPU; 0: all there is
    max_batch_tokens: NonNegativeInt = 0  # padded tokens a batch; 0: 128 on a CPU (more only waits), 16384 on a GPU
    max_batch_texts: NonNegativeInt = 0  # 0: 64 on a CPU, 256 on a GPU
    max_queued_texts: PositiveInt = 4096  # admitted and unanswered; beyond it callers get 429
    probe: Literal["request", "interval"] = "request"  # remote encoder: a known text in each request, or one a minute
    max_remote_texts: PositiveInt = 10_000  # of a calibration by a remote encoder, whose server may charge for each
    max_wait: PositiveFloat = 0.3  # s of queue; beyond it callers get 429, unless 64 pairs or 16 like theirs wait

    # Calibrations in memory
    resident_bytes: NonNegativeInt = 0  # of loaded calibrations; 0: what the memory limit leaves, 1 GiB without one

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
    max_vector_bytes: PositiveInt = 1_000_000_000  # where vectors are brought; each job that waits holds its own
    max_calibration_sentences: PositiveInt = 1_000_000  # each takes dim × 4 bytes of the worker's memory
    request_timeout: PositiveFloat = 120.0  # s of a scoring request; longer ones get 503 and their work is dropped
    header_timeout: PositiveFloat = 10.0  # s from a connection's or a request's begin to the end of its headers
    body_timeout: PositiveFloat = 20.0  # s a body may take, and one more for every min_transfer_rate bytes of it
    min_transfer_rate: PositiveInt = 8_000  # bytes/s that a slow client must send or read at least
    keep_alive: PositiveInt = 75  # s an idle connection stays; longer than a load balancer's own timeout, often 60
    max_connections: PositiveInt = 4096  # beyond them the longest idle is closed for a new one; none idle: 503

    # Calibration
    keep_versions: PositiveInt = 10  # a domain; champion and previous are always kept
    keep_interrupted: PositiveInt = 24 * 3600  # s an interrupted job keeps its text, to be retried; then it fails
    keep_jobs: PositiveInt = 1000  # records of ended jobs
    max_queued_jobs: PositiveInt = 100  # each holds its text on disk until it runs
    job_timeout: PositiveInt = 4 * 3600  # s; a job that takes longer is ended
    worker_threads: PositiveInt = 1  # of a calibration beside serving
    poll_seconds: PositiveFloat = 0.5  # how often the store is looked at for new champions

    # Process
    drain_delay: NonNegativeFloat = 0.0  # s after SIGTERM, not ready but serving: until a balancer has seen it
    drain_seconds: PositiveFloat = 10.0  # then: how long what is in flight may take to finish

    # Observation
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # no level logs texts or keys
    log_format: Literal["auto", "json", "text"] = "auto"  # auto: text on a terminal, else JSON, a line an event
    access_log: Literal["all", "slow", "off"] = "all"  # a line a request, or for the slow and the failed (5xx) ones
    slow_seconds: PositiveFloat = 1.0  # s from which on a request is slow
    otlp_endpoint: str | None = None  # of a collector, http://host:4318; needs isosim[tracing]; OTEL_* hold too

    @field_validator("redis_url")
    @classmethod
    def _is_an_address(cls, value: SecretStr | None) -> SecretStr | None:
        """Says what is wrong without the address itself: a password that is not encoded would be taken for a port."""
        if value is not None:
            try:
                parts = urlsplit(value.get_secret_value())
                named = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
                well = named or (parts.scheme == "unix" and parts.path)
            except ValueError:
                well = False
            if not well:
                raise ValueError(ADDRESS)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin: scheme, host and port alone, like https://app.example.com")
        return value

    @field_validator("redis_ca_file")
    @classmethod
    def _has_something_to_verify(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        url: SecretStr | None = info.data.get("redis_url")
        if value is not None and (url is None or not url.get_secret_value().startswith("rediss://")):
            raise ValueError("only an address that begins with rediss:// is verified")
        return value

    @field_validator("model_store")
    @classmethod
    def _is_a_folder_or_a_bucket(cls, value: Path) -> Path:
        """pathlib writes s3://bucket/prefix as s3:/bucket/prefix, and so it is passed on."""
        scheme = value.parts[0] if value.parts else ""
        if SCHEME.fullmatch(scheme) and scheme != "s3:":
            raise ValueError(f"{scheme}// is not known: a folder, or s3://bucket/prefix")
        return value

    @property
    def jobs_root(self) -> Path:
        """The folder or bucket that holds `jobs/`."""
        return self.jobs_folder or self.model_store

    @property
    def redis_address(self) -> str | None:
        """The address with its password and authority, as Redis's client takes it. Never to be shown."""
        if self.redis_url is None:
            return None
        parts = urlsplit(self.redis_url.get_secret_value())
        place, query = parts.netloc, parts.query
        if self.redis_password is not None:
            user = place.rpartition("@")[0].partition(":")[0]
            password = quote(self.redis_password.get_secret_value(), safe="")
            place = f"{user}:{password}@{place.rpartition('@')[2]}"
        if self.redis_ca_file is not None:
            query = "&".join([*filter(None, [query]), f"ssl_ca_certs={quote(str(self.redis_ca_file))}"])
        return urlunsplit(parts._replace(netloc=place, query=query))


def otel_endpoint() -> bool:
    """Whether OpenTelemetry's own variables, which its SDK reads by itself, say where traces go."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return not off and any(os.environ.get(name) for name in names)


def unread(names: Iterable[str]) -> dict[str, str | None]:
    """The `ISOSIM_*` among names of variables that are no setting, each with the setting it resembles, if any.

    pydantic-settings passes over them in silence, and what was meant stays at its default.
    """
    prefix = Settings.model_config["env_prefix"]
    known = [prefix + field.upper() for field in Settings.model_fields]
    odd = sorted(name for name in names if name.upper().startswith(prefix) and name.upper() not in known)
    return {name: next(iter(get_close_matches(name.upper(), known, 1, cutoff=0.8)), None) for name in odd}
