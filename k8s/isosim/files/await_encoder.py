"""Init container of the API: waits until a worker has registered the remote encoder at this address.

Arguments: the encoder's name, the address, the key's file or an empty string. ISOSIM_MODEL_STORE names the model store.
"""

import json
import os
import signal
import sys
import time

from isosim.store.blobs import opened

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a container's first process has no default action
NAME, URL, KEY_FILE = sys.argv[1:]
WANTED = (URL.rstrip("/").removesuffix("/embeddings"), KEY_FILE or None)  # in the form of the registration
STORE = opened(os.environ["ISOSIM_MODEL_STORE"])


def registered():
    keys = (entry.key for entry in STORE.list(f"encoders/{NAME}/") if entry.key.endswith("/manifest.json"))
    remotes = [json.loads(STORE.read(key)[0]).get("remote") or {} for key in keys]
    return WANTED in [(remote.get("url"), remote.get("key_file")) for remote in remotes]


if not registered():
    print(f"waiting: no worker has registered {NAME} at {WANTED[0]} yet", flush=True)
while not registered():
    time.sleep(2)
