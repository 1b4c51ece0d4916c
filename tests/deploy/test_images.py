"""The images on a real engine: what is in them, how they start, answer and end."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.deploy.conftest import REVISION
from tests.deploy.engine import HARDENED, ROOT, Container, Engine, answers

MB = 1_000_000
COSINE = 0.6674459  # of the README's first pair
BASE = re.search(r"^ARG BASE=(\S+)", (ROOT / "Dockerfile").read_text(), re.M)
ANONYMOUS = ("-e", "ISOSIM_ALLOW_ANONYMOUS=true")


@pytest.fixture(scope="module")
def served(engine: Engine, cpu: str) -> Iterator[Container]:
    """The image as a site runs it, on a volume that was empty."""
    volume = f"{engine.volume('store')}:/model_store"
    limits = ("--memory", "1g", "--cpus", "2")
    with engine.container(*HARDENED, *limits, "-p", "127.0.0.1::8000", "-v", volume, *ANONYMOUS, cpu) as container:
        container.healthy()
        yield container


def packages(engine: Engine, image: str) -> set[str]:
    code = "import importlib.metadata as m; print(*[d.metadata['name'].lower() for d in m.distributions()])"
    return set(engine.once("--entrypoint", "python", image, "-c", code).split())


def test_cpu_takes_450_mb_over_its_base_at_most_without_an_encoder(
    engine: Engine, cpu: str, bare: str, worker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert BASE
    base = engine.size(BASE[1])
    with capsys.disabled():
        print(f"\nbase {base / MB:.0f} MB; over it:", end="")
        for name, image in {"cpu without an encoder": bare, "cpu": cpu, "worker": worker}.items():
            print(f" {name} {(engine.size(image) - base) / MB:.0f} MB", end="")
        print()
    assert engine.size(bare) - base <= 450 * MB


def test_torch_is_in_the_worker_alone_and_cuda_in_neither(engine: Engine, cpu: str, worker: str) -> None:
    serving, training = packages(engine, cpu), packages(engine, worker)
    assert {"onnxruntime", "obstore", "isosim"} <= serving
    assert {"torch", "onnxruntime", "obstore", "isosim"} <= training
    assert not serving & {"torch", "transformers", "onnx", "scikit-learn", "cyclonedx-bom"}
    assert not [name for name in serving | training if name.startswith(("nvidia", "triton"))]
    assert engine.once("--entrypoint", "python", worker, "-c", "import torch; print(torch.version.cuda)") == "None\n"


def test_nothing_in_an_image_installs_packages_or_gives_another_users_rights(
    engine: Engine, cpu: str, worker: str
) -> None:
    look = (
        "import os; print([path for top, _, names in os.walk('/', followlinks=False) for name in names"
        " if not top.startswith(('/proc', '/sys')) and os.path.isfile(path := os.path.join(top, name))"
        " and not os.path.islink(path) and os.stat(path).st_mode & 0o6000])"
    )
    for image in (cpu, worker):
        assert engine.once("--user", "0", "--entrypoint", "python", image, "-c", look).strip() == "[]"
        assert "pip" not in packages(engine, image)
        assert "isosim" in engine.once("--entrypoint", "sh", image, "-c", "command -v pip pip3; command -v isosim")


def test_an_image_says_what_it_is_and_lists_what_is_in_it(engine: Engine, cpu: str, worker: str) -> None:
    version = engine.once(cpu, "--version").split()[1]
    for image, in_it, not_in_it in ((cpu, "onnxruntime", "torch"), (worker, "torch", "cyclonedx-bom")):
        labels = engine.inspect(image)["Config"]["Labels"]
        assert labels["org.opencontainers.image.version"] == version
        assert labels["org.opencontainers.image.revision"] == REVISION
        read = "print(open('/usr/share/isosim/sbom.cdx.json').read())"
        bill = json.loads(engine.once("--entrypoint", "python", image, "-c", read))
        assert bill["bomFormat"] == "CycloneDX"
        kinds: dict[str, dict[str, str]] = {}
        for part in bill["components"]:
            ours = "pkg:pypi" if part["type"] == "library" else part["type"]  # isosim comes from no index
            kind = part["purl"].partition("/")[0] if "purl" in part else ours
            kinds.setdefault(kind, {})[part["name"].lower()] = part["version"]
        assert kinds["pkg:generic"].keys() == {"python"}
        assert {"libc6", "openssl"} <= kinds["pkg:deb"].keys()
        assert kinds["machine-learning-model"].keys() == {"minilm"}
        listed = kinds["pkg:pypi"]
        assert in_it in listed
        assert listed["isosim"] == version
        assert not_in_it not in listed
        assert packages(engine, image) == set(listed)


def test_it_needs_no_root_no_shell_and_writes_to_nothing_but_its_volume(
    engine: Engine, cpu: str, worker: str, served: Container
) -> None:
    for image in (cpu, worker):
        config = engine.inspect(image)["Config"]
        assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["User"])
        assert config["Entrypoint"] == ["isosim"]
        assert "ORT_DISABLE_TELEMETRY=1" in config["Env"]  # for other programs than isosim in the container
    answer = answers(served.url)
    assert answer.status_code == 200, answer.text
    assert answer.json()["cosine"] == [pytest.approx(COSINE, abs=1e-4)]
    assert answer.json()["percentile"][0] > 0.99  # the encoder's default calibration came along
    status = served.python("print(open('/proc/1/status').read())")
    assert re.search(r"^Uid:\s+10001\s+10001\s+10001\s+10001$", status, re.M)
    assert re.search(r"^CapEff:\s+0+$", status, re.M)
    assert "torch" not in served.python("print(open('/proc/1/maps').read())")
    assert engine.docker("diff", served.id).strip() == ""


def test_a_volume_gets_the_default_calibration_once_and_no_encoder(engine: Engine, cpu: str, served: Container) -> None:
    listing = "from pathlib import Path; print(*sorted(str(f) for f in Path('/model_store').rglob('*') if f.is_file()))"
    before = served.python(listing)
    assert "/model_store/store.json" in before
    assert "default" in before
    assert "/encoders/" not in before
    code, took = served.stop(15)  # its drain time
    assert (code, took < 10) == (0, True), served.log()
    engine.docker("start", served.id)
    served.healthy()
    assert served.python(listing) == before
    volume = served.engine.inspect(served.id)["Mounts"]
    (store,) = [mount["Name"] for mount in volume if mount["Destination"] == "/model_store"]
    words = ("-v", f"{store}:/model_store", cpu, "similarity")
    assert "0.667" in engine.once(*words, given="A man is playing a guitar.\tSomeone plays an instrument.\n")


def test_a_stop_while_it_starts_is_heard(engine: Engine, cpu: str) -> None:
    """The first process of a container ignores a signal that it has no handler for."""
    with engine.container(*ANONYMOUS, cpu) as container:
        container.wait_until(lambda: "store_id" in container.log())
        code, took = container.stop(60)
        assert code in (0, 143), container.log()
        assert took < 30
