"""What all commands share: exit codes, errors in one line, help, completion; and the keys that they make."""

import hashlib
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from redis import Redis

from isosim.access.key_file import Keys
from isosim.cli import COMMANDS, load
from isosim.settings import Settings
from tests.commands.conftest import Run
from tests.processes import command, environment
from tests.text import sentences


def test_every_command_in_the_list_can_be_loaded_and_helps() -> None:
    for name, (place, _) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        found = getattr(import_module(f"isosim.{module}"), attribute)
        command = load(name)
        assert command.name == name
        assert isinstance(found, typer.Typer) or found.__doc__, name
        assert "Exit codes: 0 done" in command.epilog


def test_help_and_version_import_no_package_but_typer() -> None:
    heavy = ("numpy", "onnxruntime", "pydantic_settings", "fastapi", "torch", "rich", "orjson")
    code = (
        "import sys; from isosim.cli import app\n"
        f"try: app([sys.argv[1]])\nexcept SystemExit: print([n for n in {heavy} if n in sys.modules], file=sys.stderr)"
    )
    for asked, said in (("--help", "doctor"), ("--version", "isosim 1.")):
        done = subprocess.run([sys.executable, "-c", code, asked], capture_output=True, text=True, check=True)
        assert said in done.stdout
        assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("thresold",), "Did you mean 'threshold'?"),
        (("threshold", "default", "--fmr", "1%"), "'--fmr': Input should be a valid number"),
        (("embed", "-o", "x.csv"), ".npy or .jsonl"),
        (("similarity", "a", "b"), "unexpected extra argument(s) (b)"),
        (("domains", "promote", "tickets", "one"), "version"),
        (("train", "regression", __file__, "-o", "x", "--batch-size", "0"), "--batch-size"),
    ],
)
def test_a_wrong_command_line_is_said_in_one_line_with_code_2(run: Run, words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.startswith("isosim: ")
    assert "--help)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("similarity", "/nowhere.tsv"), "/nowhere.tsv: No such file or directory"),
        (("similarity", "--domain", "NOT A NAME"), "domain 'NOT A NAME'"),
        (("threshold", "default", "--fmr", "5"), "fmr: 5; it must be a share"),
        (("threshold", "nope", "--fmr", "0.01"), "no domain 'nope'; isosim domains lists the domains"),
        (("domains", "delete", "tickets", "2", "--yes"), "promote others first, or delete the whole dom"),
        (("domains", "promote", "tickets", "1"), "--yes"),
        (("similarity", "--encoder", "nope"), "no encoder 'nope'"),
        (("domains", "--model-store", "/nowhere"), "no model store at /nowhere"),
        (("serve", "--model-store", "/nowhere", "--port", "0"), "no model store at /nowhere"),
        (("worker", "--model-store", "/nowhere", "--redis-url", "redis://127.0.0.1:1"), "no model store at /nowhere"),
        (("serve", "--encoder", "nope", "--port", "0"), "no encoder 'nope'"),
        (("evaluate", "--sts", "/dev"), "/dev has no sts12"),
    ],
)
def test_a_users_mistake_is_said_with_code_1(run: Run, words: tuple[str, ...], said: str) -> None:
    done = run(*words, stdin="a\tb\n", log_format="text")  # as on a terminal
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("isosim: ")
    assert said in last


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "cuda"}, "CUDAExecutionProvider does not load"),
        ({"engine": "cuda", "log_format": "json"}, "CUDAExecutionProvider does not load"),
        ({"cors_origins": "https://a.example,b.example"}, "ISOSIM_CORS_ORIGINS: Value error, 'b.example' is not an"),
        ({"cors_origins": '["https://a.example"'}, "ISOSIM_CORS_ORIGINS: "),
        ({"model_store": "ftp://bucket"}, "ftp:// is not supported"),
        ({"api_keys_file": "/nowhere/keys"}, "ISOSIM_API_KEYS_FILE: /nowhere/keys: No such file or directory"),
        ({"port": "none"}, "ISOSIM_PORT: "),
    ],
)
def test_a_setting_that_stops_the_start_is_said_in_one_line(run: Run, settings: dict[str, str], said: str) -> None:
    words = ("domains",) if "port" in settings else ("serve", "--port", "0")
    done = run(*words, **{"log_format": "text"} | settings)
    assert done.returncode in ((2,) if "port" in settings else (1, 2))
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_lists_have_commas_or_are_json() -> None:
    origins = ("https://a.example", "https://b.example")
    for value in ("https://a.example, https://b.example", '["https://a.example", "https://b.example"]', origins):
        assert Settings(cors_origins=value).cors_origins == origins


def test_a_socket_is_an_address_of_redis() -> None:
    for password, shown in ((None, "unix:///run/redis.sock?db=2"), ("p/w", "unix://:p%2Fw@/run/redis.sock?db=2")):
        settings = Settings(redis_url="unix:///run/redis.sock?db=2", redis_password=password)
        assert settings.redis_address == shown
        taken = Redis.from_url(shown).connection_pool.connection_kwargs
        assert (taken["path"], taken["db"], taken.get("password")) == ("/run/redis.sock", 2, password)


def test_the_address_of_redis_carries_options() -> None:
    plain = Settings(redis_url="redis://host:6379/0")
    slow = Settings(redis_url=f"rediss://host/0?ssl_ca_certs={__file__}&socket_timeout=0.2")
    assert (plain.redis_timeout, slow.redis_timeout) == (0.05, 0.2)
    # Without the time: it is for lookups, and would also end what waits longer, as workers do for hints.
    assert slow.redis_address is not None
    assert Redis.from_url(slow.redis_address).connection_pool.connection_kwargs["ssl_ca_certs"] == __file__
    assert "socket_timeout" not in slow.redis_address


@pytest.mark.parametrize("words", [("serve", "--port", "0"), ("domains",), ("encoder", "list")])
def test_a_misspelt_setting_is_said_by_every_command_that_reads_settings(run: Run, words: tuple[str, ...]) -> None:
    done = run(*words, encoder="nope", hots="0.0.0.0")  # noqa: S104
    assert "ISOSIM_HOTS is not a setting and has no effect; did you mean ISOSIM_HOST?" in done.stderr


def test_a_column_with_too_few_values_is_refused_with_the_likeliest_one(
    run: Run, own_store: Path, tmp_path: Path
) -> None:
    rows = (f"{number}\t{text}\topen\n" for number, text in enumerate(sentences(300)))
    (tmp_path / "tickets.tsv").write_text("id\tquestion\tstate\n" + "".join(rows))
    words = ("calibrate", str(tmp_path / "tickets.tsv"), "--domain", "few", "--column")
    done = run(*words, "state", model_store=own_store)
    assert (done.returncode, done.stdout) == (1, "")
    notice, error = done.stderr.splitlines()
    assert notice.endswith("tickets.tsv: 'state' was read; the longest text is in column 'question'")
    assert error.startswith("isosim: texts: 1 distinct sentences among 300; method 'auto' needs at least 200; ")


def test_calibrate_reads_a_pipe_says_what_it_guesses_and_names_a_bad_line(run: Run, own_store: Path) -> None:
    text = "\n".join(sentences(300)).encode() + b"\nsch\xf6n\n"
    words = ("calibrate", "-", "--domain", "piped", "--method", "identity", "--json")
    done = run(*words, stdin=text, model_store=own_store)
    facts = json.loads(done.stdout)
    assert (facts["domain"], facts["version"], facts["report"]["sentences"]) == ("piped", 1, 301)
    assert done.stderr.startswith("standard input: the file is not UTF-8 and was read as windows-1252, a guess")
    bad = run(*words, "--charset", "utf-8", stdin=text, model_store=own_store)
    assert bad.returncode == 1
    assert "standard input: line 301 is not utf-8; charset can name another encoding" in bad.stderr


def test_bundle_writes_the_champion_and_refuses_a_version_of_no_calibration(
    run: Run, store: Path, tmp_path: Path
) -> None:
    made = json.loads(run("bundle", "tickets", "-o", str(tmp_path / "x.onnx"), "--json").stdout)
    assert (made["domain"], made["version"], made["method"]) == ("tickets", 2, "soft")
    assert made["bytes"] == (tmp_path / "x.onnx").stat().st_size
    refused = run("bundle", "default", "-o", str(tmp_path / "y.onnx"), model_store=store)
    assert "default@0 was not made for encoder tiny; to make a version" in refused.stderr


def completed(store: Path, words: str, position: int) -> list[str]:
    """What bash would be offered."""
    given = {"_ISOSIM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    done = subprocess.run(
        [sys.executable, "-m", "isosim.cli"], env=environment(model_store=store) | given, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_the_shell_completes_commands(calibrated_store: Path) -> None:
    assert completed(calibrated_store, "isosim d", 1) == ["domains", "doctor"]
    assert completed(calibrated_store, "isosim domains ro", 2) == ["rollback"]


def test_completion_can_be_installed(tmp_path: Path) -> None:
    # The shell is the process above: bash, which must not step aside for its only command.
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m isosim.cli --install-completion; true"],
        env=environment() | {"HOME": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    installed = [file for file in tmp_path.rglob("*") if file.is_file() and "_ISOSIM_COMPLETE" in file.read_text()]
    assert installed, done.stdout + done.stderr


def test_a_new_key_and_its_line_fit_and_the_key_is_long_enough(tmp_path: Path) -> None:
    done = command(
        "keys", "new", "--scopes", "read,calibrate", "--name", "team a", "--domains", "a,b-*", "--rate", "9/s"
    )
    found = re.fullmatch(r"key: (isk_[A-Za-z0-9_-]{43})\nline: (\S+) (.+)\n", done.stdout)
    assert found is not None, done.stdout
    key, digest, rest = found.groups()
    assert digest == hashlib.sha256(key.encode()).hexdigest()
    assert rest == "read,calibrate domains=a,b-* rate=9/s team a"
    (tmp_path / "keys").write_text(f"{digest} {rest}\n")
    grant = Keys(tmp_path / "keys").identify(f"Bearer {key}")
    grant.check_scope("calibrate")
    assert grant.name == "team a"


def test_added_keys_stand_in_a_file_of_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n")
    file.chmod(0o640)
    made = [json.loads(command("keys", "new", "--add", str(path), "--json").stdout)["key"] for path in (file, file)]
    assert [Keys(file).identify(f"Bearer {key}").scopes for key in made] == [{"read"}, {"read"}]
    assert file.read_text().startswith("# ours\n")
    assert "read domains=*\n" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    command("keys", "new", "--add", str(tmp_path / "fresh"))
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o600


def test_no_line_is_added_to_a_file_that_may_have_been_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{'a' * 64} read domains=team-*")
    done = command("keys", "new", "--add", str(file))
    assert done.returncode == 1
    assert "does not end with a line break" in done.stderr
    assert file.read_text() == f"{'a' * 64} read domains=team-*"


def test_the_list_shows_rights_and_neither_keys_nor_hashes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    options = ("--json", "--until", "2027-01-31", "--name", "us")
    made = json.loads(command("keys", "new", "--add", str(file), *options).stdout)
    for done in (command("keys", "list", str(file)), command("keys", "list", "--json", api_keys_file=file)):
        assert "us" in done.stdout and "2027-01-31" in done.stdout
        assert made["key"] not in done.stdout
        assert made["line"].split()[0] not in done.stdout


def test_what_the_server_would_not_take_is_not_made(tmp_path: Path) -> None:
    for option, value in (
        ("--scopes", "write"), ("--domains", "A"), ("--name", "#1"),
    ):  # fmt: skip
        done = command("keys", "new", "--add", str(tmp_path / "keys"), option, value)
        assert done.returncode == 1
        assert done.stdout == ""
    assert not (tmp_path / "keys").exists()
    assert command("keys", "list").returncode == 1
