"""Helm itself, out of helm-python-sdk: reads a request on stdin, writes its answer on stdout. Runs in `.venv-deploy`.

Of the chart in the checkout, or of the folder or archive that is named. {"lint": values} gives the messages,
{"render": values} the manifests of an installation by template, or {"refused": why}; {"upgrade": values} those of an
upgrade, the second revision unless "revision" is given.
"""

import json
import sys
from pathlib import Path
from typing import Any

from helm_python import Chart, HelmError, lint

CHART = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[2] / "k8s" / "isosim"


def answer(request: dict[str, Any]) -> Any:
    if "lint" in request:
        return lint(CHART, request["lint"], strict=True)
    upgrade = "upgrade" in request
    with Chart.load(CHART) as chart:
        try:
            return chart.render(
                request["upgrade" if upgrade else "render"], name="similarity", namespace="scoring",
                is_install=not upgrade, is_upgrade=upgrade,
                revision=request.get("revision", 2) if upgrade else 1,
            )  # fmt: skip
        except HelmError as error:
            return {"refused": str(error)}


json.dump([answer(request) for request in json.load(sys.stdin)], sys.stdout)
