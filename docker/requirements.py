"""Prints what pyproject.toml asks for with some extras, a requirement a line: packages are installed before the code is
there, in a layer that a change of the code leaves alone.

    python requirements.py pyproject.toml cpu tracing
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    extras = [line for extra in sys.argv[2:] for line in project["optional-dependencies"][extra]]
    print(*project["dependencies"], *extras, sep="\n")


if __name__ == "__main__":
    main()
