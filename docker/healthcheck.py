"""HEALTHCHECK of the images: exits with 0 while the server of this container is ready."""

import os
import sys
import urllib.request

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - read, not bound
TIMEOUT = 3.0  # s


def main() -> None:
    host = os.environ.get("ISOSIM_HOST", "127.0.0.1")
    address = f"http://{EVERYWHERE.get(host, host)}:{os.environ.get('ISOSIM_PORT', '8000')}/readyz"
    # Ignores proxy settings, because the server runs in this container.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        direct.open(address, timeout=TIMEOUT).close()
    except OSError as error:  # also for HTTP errors: 503 while the server starts or drains
        sys.exit(f"{address}: {error}")


if __name__ == "__main__":
    main()
