"""Adds Debian packages, Python and encoders to an image's bill of materials (CycloneDX) of Python packages.

Arguments: the bill, which is rewritten; the folder of the image's encoders.
"""

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

FIELDS = "${Package}\t${Version}\t${Architecture}\n"


def debian() -> list[dict[str, Any]]:
    listed = subprocess.run(  # noqa: S603 - our own command
        ["/usr/bin/dpkg-query", "--show", "--showformat", FIELDS], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split("\t") for line in listed.splitlines())
    return [
        {
            "type": "library", "name": name, "version": version,
            "purl": f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}?arch={processor}",
        }
        for name, version, processor in rows
    ]  # fmt: skip


def encoders(store: Path) -> list[dict[str, Any]]:
    manifests = {path.parent: json.loads(path.read_bytes()) for path in store.glob("encoders/*/*/manifest.json")}
    return [
        {"type": "machine-learning-model", "name": folder.parent.name, "version": folder.name}
        | ({"licenses": [{"license": {"name": manifest["licence"]}}]} if manifest.get("licence") else {})
        for folder, manifest in manifests.items()
    ]


def main(bill: Path, store: Path) -> None:
    found = json.loads(bill.read_bytes())
    version = platform.python_version()
    python = {"type": "application", "name": "python", "version": version, "purl": f"pkg:generic/python@{version}"}
    found["components"] += [*debian(), python, *encoders(store)]
    bill.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
