"""Prints the requirements of pyproject.toml with some extras, one a line.

The images install packages in a layer before the code, so that a change of the code does not repeat it.

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
