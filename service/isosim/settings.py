"""All settings. The entry points read them once, from the environment variables `ISOSIM_*`; no other module reads the
environment."""

import json
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit, urlunsplit

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from isosim.encoders.spec import Engine
from isosim.errors import Unavailable

ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")  # at least two characters, because C: is a drive
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
BUCKETS = {"s3:", "gs:", "az:"}  # Amazon S3 and what is compatible, Google Cloud Storage, Azure
TIMEOUT = "socket_timeout"  # option of a Redis URL, in seconds
REDIS_SECONDS = 0.05  # default of this option
FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}  # options of a Redis URL that name files
VECTOR_BYTES = 10  # vectors of a calibration may take this many times the bytes of its text
COMMANDS = {"ISOSIM_SERVER", "ISOSIM_API_KEY"}  # read by commands that ask a server
ADDRESS = (
    "not an address like redis://user:password@host:6379/0; signs such as / # ? in a password must be "
    "percent-encoded; or give the password in ISOSIM_REDIS_PASSWORD"
)


def entries(value: object) -> object:
    """The entries of a list in an environment variable, written with commas or as JSON."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)  # an invalid list raises ValueError, which pydantic reports with the variable's name
    return [entry.strip() for entry in value.split(",") if entry.strip()]


# NoDecode: pydantic-settings would end with a traceback if the variable's value is not JSON.
List = Annotated[tuple[str, ...], NoDecode, BeforeValidator(entries)]


class Settings(BaseSettings):
    """Each field's comment says how to choose it."""

    model_config = SettingsConfigDict(env_prefix="ISOSIM_", frozen=True, extra="forbid", hide_input_in_errors=True)

    # Addresses, store and encoder
    host: str = "127.0.0.1"  # address to bind; an address other than loopback needs API keys or allow_anonymous
    port: int = Field(default=8000, ge=0, le=65535)  # port to bind; 0: a free one
    metrics_port: int | None = Field(
        # own port of /metrics, to be fenced; then also counts texts by name of the API key; unset: `port`
        default=None,
        ge=1,
        le=65535,
    )
    model_store: Path = Path("model_store")  # a folder that API and workers share, or s3://bucket/prefix, gs://, az://
    seed_store: Path | None = None  # second store, only read: encoders that the first lacks; set in images
    encoder: str = "minilm"  # id of an encoder in the store, or id@digest to pin one export
    redis_url: SecretStr | None = (
        # redis://user:password@host:6379/0, or rediss:// (TLS), for a shared cache. ?ssl_ca_certs=FILE verifies the
        # certificate by a PEM file instead of the system's; ?socket_timeout=0.2 waits longer than 0.05 s for a lookup,
        # after which it counts as a miss
        None
    )
    redis_password: SecretStr | None = None  # Redis's password, not percent-encoded, unlike one inside redis_url

    # Access
    api_keys_file: Path | None = None  # file of lines that `isosim keys new` prints (SECURITY.md); re-read on changes
    allow_anonymous: bool = False  # bind any address and accept any Host header without keys, e.g. behind a login proxy
    cors_origins: List = ()  # web origins that may call the API, with commas between, like https://app.example.com

    # Engine
    engine: Engine | None = (
        # what computes vectors; unset: OpenVINO at bf16, else CUDA if it loads, else ONNX Runtime on the CPU; cuda: no
        # start without a GPU
        None
    )
    runs: NonNegativeInt = (
        # batches computed in parallel; 0: on CPU one per core, at most 8; on GPU one. On CPU, more than one needs twice
        # the memory for weights, because a batch that runs alone may use all cores, which is a fifth faster
        0
    )
    threads: NonNegativeInt = (
        # threads that compute a batch; 0: the number of cores divided by runs. In `isosim worker`: threads that compute
        # a calibration; 0: one
        0
    )
    gpu_memory_bytes: NonNegativeInt = 0  # maximum bytes of GPU memory for the encoder's arena; 0: no limit
    max_batch_tokens: NonNegativeInt = 0  # padded tokens in a batch; 0: 128 on CPU (more only adds delay), 16384 on GPU
    max_remote_texts: PositiveInt = 10_000  # maximum texts a job sends to a remote encoder, which may charge
    max_wait: PositiveFloat = (
        # seconds; a request gets 429 if encoding the queued texts is expected to take longer. Does not apply while at
        # most about 64 pairs are queued, nor to requests of at least a 16th of the queue's characters
        0.3
    )

    # Calibrations in memory
    resident_bytes: NonNegativeInt = 0  # bytes; 0: derived from the memory limit, or at most 1 GiB if there is no limit

    # Cache
    memory_cache_bytes: NonNegativeInt = 64 * 2**20  # 64 MiB hold about 35,000 vectors of dimension 384; 0: no cache
    redis_ttl: PositiveInt = 7 * 24 * 3600  # seconds that Redis keeps a vector

    # Limits
    max_pairs: PositiveInt = 512  # pairs in a request to /similarity or /score; 512 keep two cores busy for seconds
    max_characters: PositiveInt = 10_000  # characters in one text
    max_body_bytes: PositiveInt = 2_000_000  # bytes of a JSON body; 2 MB take up to 40 ms to parse, while others wait
    max_calibration_bytes: PositiveInt = (
        # bytes of a calibration as text, NDJSON or file, streamed to disk; ten times as many for vectors
        100_000_000
    )
    max_calibration_sentences: PositiveInt = 1_000_000  # per calibration; memory: 4 bytes per sentence and dimension
    request_timeout: PositiveFloat = 120.0  # seconds; a scoring request that takes longer is cancelled and gets 503

    # Calibration
    keep_versions: PositiveInt = 10  # versions kept for each domain; champion and previous are always kept
    local_worker: bool = True  # the API runs calibrations in a child process; false: only `isosim worker` does
    max_queued_jobs: PositiveInt = 100  # maximum number of jobs that have not ended; the store keeps the text of each
    keep_results: PositiveInt = 24 * 3600  # seconds since its last use that a match's result is kept, with its texts
    job_timeout: PositiveInt = 4 * 3600  # seconds; a job that takes longer is stopped

    # Process
    drain_delay: NonNegativeFloat = 0.0  # seconds after SIGTERM in which requests are served, but /readyz answers 503
    drain_seconds: PositiveFloat = 10.0  # seconds after drain_delay in which requests in flight may finish

    # Observation
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # no level logs texts or keys
    log_format: Literal["auto", "json", "text"] = "auto"  # auto: text on a terminal, else a JSON object in each line
    access_log: Literal["all", "slow", "off"] = "all"  # slow: requests that took 1 s, or failed; off: only failed ones

    @field_validator("redis_url")
    @classmethod
    def _is_an_address(cls, value: SecretStr | None) -> SecretStr | None:
        """Refuses malformed addresses. The message does not quote the address, which may contain a password."""
        if value is not None:
            try:
                parts = urlsplit(value.get_secret_value())
                named = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
                well = named or (parts.scheme == "unix" and parts.path)
            except ValueError:
                well = False
            if not well:
                raise ValueError(ADDRESS)
            check_options(parts)
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r} is not an origin; give only scheme, host and port, like https://app.example.com"
                )
        return value

    @field_validator("model_store", "seed_store")
    @classmethod
    def _is_a_folder_or_a_bucket(cls, value: Path | None) -> Path | None:
        """Refuses other URL schemes. In a Path, s3://bucket/prefix has become s3:/bucket/prefix."""
        scheme = value.parts[0] if value is not None and value.parts else ""
        if SCHEME.fullmatch(scheme) and scheme not in BUCKETS:
            raise ValueError(f"{scheme}// is not supported; give a folder, or s3://bucket/prefix, gs://… or az://…")
        return value

    @property
    def redis_address(self) -> str | None:
        """Address for the Redis client, with the password; never log or show it."""
        if self.redis_url is None:
            return None
        parts = urlsplit(self.redis_url.get_secret_value())
        place = parts.netloc
        query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != TIMEOUT])
        if self.redis_password is not None:
            user = place.rpartition("@")[0].partition(":")[0]
            password = quote(self.redis_password.get_secret_value(), safe="")
            place = f"{user}:{password}@{place.rpartition('@')[2]}"
        if parts.scheme == "unix":  # urlunsplit would leave out the slashes before an empty place
            return f"unix://{place}{parts.path}{'?' * bool(query)}{query}"
        return urlunsplit(parts._replace(netloc=place, query=query))

    @property
    def redis_timeout(self) -> float:
        """Seconds for a lookup in Redis; a slower one counts as a miss."""
        url = "" if self.redis_url is None else self.redis_url.get_secret_value()
        return float(dict(parse_qsl(urlsplit(url).query)).get(TIMEOUT, REDIS_SECONDS))

    @property
    def max_vector_bytes(self) -> int:
        """Bytes of vectors in a request."""
        return VECTOR_BYTES * self.max_calibration_bytes


def check_options(parts: SplitResult) -> None:
    """Raises ValueError if an option in a Redis URL cannot be used, which redis-py would notice only at a lookup."""
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == TIMEOUT and not (value.replace(".", "", 1).isdecimal() and float(value) > 0):
            raise ValueError(f"{TIMEOUT} is not a positive number of seconds")
        if name.startswith("ssl_") and parts.scheme != "rediss":
            raise ValueError(f"{name} needs an address that begins with rediss://, because only TLS uses it")
        if name in FILES and not Path(value).is_file():
            raise ValueError(f"{name} does not name a file")


def check_exposure(settings: Settings) -> None:
    """Raises Unavailable if the network could reach a server without keys, unless ISOSIM_ALLOW_ANONYMOUS is true."""
    if settings.host not in LOOPBACK and settings.api_keys_file is None and not settings.allow_anonymous:
        raise Unavailable(
            f"host {settings.host} needs API keys (ISOSIM_API_KEYS_FILE) or ISOSIM_ALLOW_ANONYMOUS=true; "
            "without either, the server may listen on 127.0.0.1 only"
        )


def otel_endpoint() -> bool:
    """Whether OpenTelemetry's own variables name a collector for traces.

    `Settings` does not contain these variables; the OpenTelemetry SDK reads them.
    """
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return not off and any(os.environ.get(name) for name in names)


def unread(names: Iterable[str]) -> dict[str, str | None]:
    """Variables named `ISOSIM_*` that are not settings, each with the setting that it resembles, or None.

    pydantic-settings ignores such variables silently: a misspelt setting would keep its default unnoticed.
    """
    prefix = Settings.model_config["env_prefix"]
    known = [prefix + field.upper() for field in Settings.model_fields]
    odd = sorted(name for name in names if name.upper().startswith(prefix) and name.upper() not in {*known, *COMMANDS})
    return {name: next(iter(get_close_matches(name.upper(), known, 1, cutoff=0.8)), None) for name in odd}
