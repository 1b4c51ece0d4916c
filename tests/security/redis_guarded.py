"""A Redis with TLS, a certificate authority of its own, and a user who may do what SECURITY.md says and no more."""

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests.processes import RedisServer

ROOT = Path(__file__).parents[2]
USER, PASSWORD = "isosim", "pass/word#with?signs@and:%41"
ADMIN = "admin-of-the-test"
ACL = re.compile(r"^user isosim on .+$", re.M)


def documented_acl() -> str:
    """The rule of SECURITY.md, as it stands there."""
    found = ACL.findall((ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert len(found) == 1
    rule: str = found[0]
    return rule.replace(">PASSWORD", f">{PASSWORD}")


def authority(folder: Path, name: str = "ca") -> Path:
    """A certificate authority: name.pem and name.key."""
    folder.mkdir(exist_ok=True)
    certificate = folder / f"{name}.pem"
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-keyout", str(folder / f"{name}.key"), "-out", str(certificate),
    )  # fmt: skip
    return certificate


def certified(folder: Path) -> Path:
    """A certificate of localhost (server.pem, server.key) and that of its authority, which is returned."""
    ca = authority(folder)
    request, certificate, extensions = (folder / name for name in ("s.csr", "server.pem", "s.ext"))
    openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost",
        "-keyout", str(folder / "server.key"), "-out", str(request),
    )  # fmt: skip
    extensions.write_text("subjectAltName=DNS:localhost\n")
    openssl(
        "x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(folder / "ca.key"), "-CAcreateserial",
        "-days", "2", "-extfile", str(extensions), "-out", str(certificate),
    )  # fmt: skip
    return ca


def openssl(*words: str) -> None:
    assert shutil.which("openssl"), "openssl is missing; make test-all installs it"
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@dataclass
class GuardedRedis(RedisServer):
    ca: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.ca = certified(self.folder)
        (self.folder / "users.acl").write_text(
            f"user default off\nuser admin on >{ADMIN} ~* &* +@all\n{documented_acl()}\n"
        )

    @property
    def url(self) -> str:
        """Without the password, which a setting of its own brings."""
        return f"rediss://{USER}@localhost:{self.port}/0"

    def options(self) -> list[str]:
        folder = self.folder
        return [
            "--port", "0", "--tls-port", str(self.port), "--bind", "127.0.0.1", "--tls-cert-file",
            str(folder / "server.pem"), "--tls-key-file", str(folder / "server.key"), "--tls-ca-cert-file",
            str(self.ca), "--tls-auth-clients", "no", "--aclfile", str(folder / "users.acl"),
        ]  # fmt: skip

    def as_admin(self) -> "redis.Redis":
        return redis.Redis(
            host="localhost", port=self.port, ssl=True, ssl_ca_certs=str(self.ca), username="admin", password=ADMIN,
            decode_responses=True,
        )  # fmt: skip

    def answers(self) -> bool:
        with contextlib.suppress(redis.RedisError, OSError), self.as_admin() as client:
            return bool(client.ping())
        return False

    def denied(self) -> list[str]:
        """Commands, keys and channels that the users were refused."""
        with self.as_admin() as client:
            log: list[dict[str, str]] = client.execute_command("ACL LOG")
            return [f"{entry['reason']}: {entry['object']}" for entry in log]
