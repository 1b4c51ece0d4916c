"""The commands of the pages that need a bucket, in one of the test's own."""

import os
import sys
from pathlib import Path

from tests.docs.pages import BUCKET, run
from tests.objects import Objects, objects
from tests.processes import environment

__all__ = ["objects"]


def test_every_command_that_needs_a_bucket_runs(objects: Objects, tmp_path: Path) -> None:
    bucket = objects.bucket().parts[1]
    settings = environment(port=0) | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    places = {"http://127.0.0.1:9000": objects.url, "s3://bucket/": f"s3://{bucket}/"}
    run("docs/how-to/operations.md", tmp_path, settings, places, marked=BUCKET)
