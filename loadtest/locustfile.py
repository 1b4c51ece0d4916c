"""Users that send scoring requests with pauses, for locust (loadtest/requirements.txt).

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8000 --users 16 --run-time 2m

ISOSIM_API_KEY is sent as a bearer token, ISOSIM_DOMAIN names the domain.
"""
# ruff: noqa: S311 - a load

import os
import random

from locust import FastHttpUser, between, task

WORDS = ("a", "the", "driver", "nurse", "sells", "repairs", "collects", "bicycle", "flight", "wheat", "rain", "market")
DOMAIN = os.environ.get("ISOSIM_DOMAIN", "default")
KEY = os.environ.get("ISOSIM_API_KEY")


class MixedUser(FastHttpUser):
    wait_time = between(0.05, 0.5)
    default_headers = {"authorization": f"Bearer {KEY}"} if KEY else {}

    def texts(self) -> list[str]:
        """1 to 8 texts of 1 to 12 words; short ones are often cached."""
        count = random.randint(1, 8)
        return [" ".join(random.choices(WORDS, k=random.randint(1, 12))) for _ in range(count)]

    @task(6)
    def similarity(self) -> None:
        pairs = [(text, text[::-1]) for text in self.texts()]
        self.client.post("/similarity", json={"pairs": pairs, "domain": DOMAIN})

    @task(2)
    def rerank(self) -> None:
        self.client.post("/rerank", json={"query": "a nurse", "texts": self.texts(), "domain": DOMAIN})
