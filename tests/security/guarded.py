"""`isosim serve` with other limits for connections: `python -m tests.security.guarded '{"body_timeout": 2}'`.

The limits are fields of `Guard`; `keep_alive` is the time of an idle connection.
"""

import json
import sys

from isosim.commands.serving import logged
from isosim.server.guard import Guard
from isosim.server.process import Server
from isosim.settings import Settings


def main() -> None:
    limits = json.loads(sys.argv[1])
    keep_alive = limits.pop("keep_alive", None)
    settings = Settings()
    with logged(settings, queued=True):
        server = Server(settings, Guard(**limits))
        server.config.timeout_keep_alive = keep_alive or server.config.timeout_keep_alive
        server.run()


if __name__ == "__main__":
    main()
