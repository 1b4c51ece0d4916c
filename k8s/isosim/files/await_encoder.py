"""Init container of the API: waits until a worker has registered the remote encoder at this address.

Arguments: the encoder's name, the address, the key's file or an empty string. ISOSIM_MODEL_STORE names the model store.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from isosim.store.object_storage import opened, remote

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a container's first process has no default action
NAME, URL, KEY_FILE = sys.argv[1:]
WANTED = (URL.rstrip("/").removesuffix("/embeddings"), KEY_FILE or None)  # in the form of the registration
STORE = Path(os.environ["ISOSIM_MODEL_STORE"])


def manifests():
    if remote(STORE):
        keys = (entry.key for entry in opened(STORE).list(f"encoders/{NAME}/"))
        yield from (opened(STORE).read(key)[0] for key in keys if key.endswith("/manifest.json"))
    else:
        yield from (path.read_bytes() for path in (STORE / "encoders" / NAME).glob("[!.]*/manifest.json"))


def registered():
    remotes = [json.loads(manifest).get("remote") or {} for manifest in manifests()]
    return WANTED in [(remote.get("url"), remote.get("key_file")) for remote in remotes]


if not registered():
    print(f"waiting: no worker has registered {NAME} at {WANTED[0]} yet", flush=True)
while not registered():
    time.sleep(2)
