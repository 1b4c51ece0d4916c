"""`helm test`: checks that the server is ready, and scores or requires a key. Arguments: host, port, open or keys."""

import json
import sys
from http.client import HTTPConnection

HOST, PORT, ACCESS = sys.argv[1:]
PAIR = {"pairs": [["A man is playing a guitar.", "Someone plays an instrument."]]}


def ask(method, path, body=None):
    connection = HTTPConnection(HOST, int(PORT), timeout=10)
    connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    return answer.status, json.load(answer)


status, found = ask("GET", "/readyz")
if status != 200:
    sys.exit(f"not ready: {status} {found}")
print("ready, encoder", found["encoder"])
status, found = ask("POST", "/similarity", PAIR)
if ACCESS == "keys":
    if status != 401:
        sys.exit(f"a request without a key was not refused: {status} {found}")
    print("a request without a key is refused")
else:
    if status != 200 or len(found["similarity"]) != 1:
        sys.exit(f"no score: {status} {found}")
    print("similarity", found["similarity"][0], "by", found["domain"], found["version"])
