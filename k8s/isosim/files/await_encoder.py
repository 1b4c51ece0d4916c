"""Before the API: waits until a worker has registered the remote encoder at this address.

Arguments: the encoder's folder in the model store, the address, the key's file or nothing.
"""

import json
import signal
import sys
import time
from pathlib import Path

FOLDER, URL, KEY_FILE = sys.argv[1:]
WANTED = (URL.rstrip("/").removesuffix("/embeddings"), KEY_FILE or None)  # as the registration has them


def registered():
    manifests = [json.loads(path.read_bytes()) for path in Path(FOLDER).glob("[!.]*/manifest.json")]
    remotes = [manifest.get("remote") or {} for manifest in manifests]
    return WANTED in [(remote.get("url"), remote.get("key_file")) for remote in remotes]


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a container's first process has no default action
if not registered():
    print(f"waiting: no worker has registered {Path(FOLDER).name} at {WANTED[0]} yet", flush=True)
while not registered():
    time.sleep(2)
