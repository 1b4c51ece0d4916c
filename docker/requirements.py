"""Prints what pyproject.toml asks for with an extra, a requirement a line: packages are installed before the code is
there, in a layer that a change of the code leaves alone.

    python requirements.py pyproject.toml cpu
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    print(*project["dependencies"], *project["optional-dependencies"][sys.argv[2]], sep="\n")


if __name__ == "__main__":
    main()
