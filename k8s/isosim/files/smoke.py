"""`helm test`: checks that the server is ready, requires a key where keys are in use, and scores.

Arguments: host, port, open or keys. KEY in the environment: the key to score with; without one, only an open server
has to score.
"""

import json
import os
import sys
from http.client import HTTPConnection

HOST, PORT, ACCESS = sys.argv[1:]
KEY = os.environ.get("KEY", "").strip()
PAIR = {"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]]}


def ask(method, path, body=None, key=""):
    connection = HTTPConnection(HOST, int(PORT), timeout=10)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    connection.request(method, path, json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


status, found = ask("GET", "/readyz")
if status != 200:
    sys.exit(f"not ready: {status} {found}")
print("ready, encoder", found["encoder"])
if ACCESS == "keys":
    status, found = ask("POST", "/similarity", PAIR)
    if status != 401:
        sys.exit(f"a request without a key was not refused: {status} {found}")
    print("a request without a key is refused")
if ACCESS == "open" or KEY:
    status, found = ask("POST", "/similarity", PAIR, KEY)
    if status != 200 or len(found["similarity"]) != 1:
        sys.exit(f"no score: {status} {found}")
    print("similarity", found["similarity"][0], "by", found["domain"], found["version"])
