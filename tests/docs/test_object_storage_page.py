"""The commands of the page on object storage, in a bucket of the test's own."""

import os
import sys
from pathlib import Path

from tests.docs.pages import OBJECTS, run
from tests.objects import Objects, objects
from tests.processes import RedisServer, environment

__all__ = ["objects"]


def test_every_command_of_the_page_runs(objects: Objects, redis_server: RedisServer, tmp_path: Path) -> None:
    bucket = objects.bucket().parts[1]
    settings = environment(port=0) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    places = {"http://127.0.0.1:9000": objects.url, "s3://bucket/": f"s3://{bucket}/"}
    places["redis://127.0.0.1:6379/0"] = redis_server.url
    run(OBJECTS, tmp_path, settings, places)
