"""Prints the requirements of pyproject.toml with some extras, one per line.

The images install packages before they copy the code. After a change of the code, they need not install them again.

    python requirements.py pyproject.toml cpu tracing
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    extras = [line for extra in sys.argv[2:] for line in project["optional-dependencies"][extra]]
    needed = [*project["dependencies"], *extras]
    print(*(line for line in needed if line != "isosim-client"), sep="\n")  # built from the same source


if __name__ == "__main__":
    main()
