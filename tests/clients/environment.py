"""Where the other people's clients are installed."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCAL_ONLY = ROOT / "tests" / "clients" / "local_only"  # in PYTHONPATH: other machines cannot be asked
PYTHON = Path(os.environ.get("ISOSIM_CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python"))
