"""Ends with 0 while the server of this container can answer; what docker runs as HEALTHCHECK."""

import os
import sys
import urllib.request

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - read, not bound
TIMEOUT = 3.0  # s


def main() -> None:
    host = os.environ.get("ISOSIM_HOST", "127.0.0.1")
    address = f"http://{EVERYWHERE.get(host, host)}:{os.environ.get('ISOSIM_PORT', '8000')}/readyz"
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a site's proxy does not know this address
    try:
        direct.open(address, timeout=TIMEOUT).close()
    except OSError as error:  # of HTTP, too: 503 while it starts or drains
        sys.exit(f"{address}: {error}")


if __name__ == "__main__":
    main()
