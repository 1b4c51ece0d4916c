"""Which version becomes a domain's champion."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from isosim.arrays import Doubles, Vectors
from isosim.domains.store import DomainStore
from isosim.encoders.store import EncoderArtifact
from isosim.fitting import probability, reference
from isosim.fitting.evidence import RankTest
from isosim.fitting.methods import UNCHANGED
from isosim.fitting.publication import Fit
from isosim.fitting.report import LabelReport
from isosim.jobs.job import Job, JobRequest
from isosim.jobs.store import JobStore
from isosim.scoring.advice import Target
from isosim.scoring.calibration import DomainModel
from tests.stores import domains_of, jobs_of, post_job

DIM = 32


def law(count: int, offset: float, seed: int) -> Vectors:
    """Vectors around a point this far from the origin: the farther, the more alike they are."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((count, DIM)) + offset).astype(np.float32)


def model(x: Vectors) -> DomainModel:
    rng = np.random.default_rng(0)
    pairs = reference.sample_pairs([(x, np.arange(len(x)))], rng)
    return DomainModel(reference=reference.build(pairs, rng, intervals=False))


@pytest.fixture
def domains(tmp_path: Path) -> DomainStore:
    return domains_of(tmp_path)


@dataclass(frozen=True)
class Drawn:
    """Labelled similarities (N,) for `post`."""

    made: Fit
    x: Doubles
    y: Doubles
    graded: bool
    seed: int


def result(tiny: EncoderArtifact, x: Vectors, held_out: Vectors, promote: str = "if_better") -> Fit:
    request = JobRequest("news", tiny.digest, tiny.id, promote=promote)
    return Fit(request, tiny, UNCHANGED, model(x), held_out, {"sentences": len(x)})


def published(made: Fit, domains: DomainStore, job: Job | None = None) -> tuple[int, bool, str]:
    decision = made.publish(domains, job)
    return decision.version, decision.promoted, decision.why


def champion(domains: DomainStore, tiny: EncoderArtifact) -> int | None:
    return domains.read("news").served(tiny.digest).champion


@pytest.mark.parametrize(("first", "second", "replaced"), [(0.0, 0.5, True), (0.5, 0.0, False)])
def test_a_champion_is_replaced_if_its_scale_no_longer_holds_and_the_new_one_does(
    tiny: EncoderArtifact, domains: DomainStore, first: float, second: float, replaced: bool
) -> None:
    """Held-out texts are like those of the new version, or like those of the champion."""
    assert published(result(tiny, law(500, first, 1), law(100, first, 2)), domains)[:2] == (1, True)
    version, promoted, why = published(result(tiny, law(500, second, 3), law(100, 0.5, 4)), domains)
    assert (version, promoted, champion(domains, tiny)) == (2, replaced, 2 if replaced else 1)
    assert "100 new held-out sentences" in why


def test_one_that_is_no_better_but_for_chance_is_kept(tiny: EncoderArtifact, domains: DomainStore) -> None:
    result(tiny, law(1000, 0.3, 0), law(100, 0.3, 1)).publish(domains)
    promoted = []
    for seed in range(20):
        same = result(tiny, law(1000, 0.3, 10 + seed), law(100, 0.3, 100 + seed))
        promoted.append(same.decide(domains, domains.read("news"), again=False).promoted)
    assert sum(promoted) <= 6  # a coin would give ten


def test_a_probability_is_not_lost_by_a_promotion_that_decides_itself(
    tiny: EncoderArtifact, domains: DomainStore
) -> None:
    x = law(500, 0.0, 1)
    first = result(tiny, x, x[:100])
    scale = first.model.reference
    assert scale is not None
    learnt = probability.fit(np.linspace(-0.3, 0.5, 40), scale, np.arange(40) % 2, 0)[0]
    replace(first, model=replace(first.model, probability=learnt)).publish(domains)
    better = result(tiny, law(500, 0.5, 3), law(100, 0.5, 4))
    version, promoted, why = published(better, domains)
    assert (version, promoted) == (2, False)
    assert "probability" in why
    asked = replace(better, request=replace(better.request, promote="always"))
    assert published(asked, domains)[:2] == (3, True)


def labelled(tiny: EncoderArtifact, seed: int, *, count: int = 400, graded: bool = False) -> Drawn:
    """Version 1 of `news`, or its champion with new labels."""
    made, rng = result(tiny, law(500, 0.0, 1), law(100, 0.0, 2)), np.random.default_rng(seed)
    scale = made.model.reference
    assert scale is not None
    x = rng.uniform(-0.3, 0.5, count)
    y = rng.random(count) < 1 / (1 + np.exp(-20 * (x - 0.1)))
    return Drawn(made, x, y.astype(np.float64), graded, seed)


def post(domains: DomainStore, tiny: EncoderArtifact, drawn: Drawn, promote: str = "if_better") -> tuple[bool, str]:
    """Publishes the champion with new labels, as a job does."""
    now = champion(domains, tiny)
    assert now is not None
    base = domains.load("news", now).model
    assert base.reference is not None
    learnt, report = probability.fit(drawn.x, base.reference, drawn.y, drawn.seed, graded=drawn.graded)
    own = {"posted": len(drawn.x), "contradictions": {}, "unreadable": 0, "table": []}
    labels = LabelReport.build(report, RankTest("auroc", 1.0, 0.0, 1.0), **own)
    posted = replace(drawn.made.request, base=now, champion=now, promote=promote)
    made = replace(drawn.made, request=posted, model=replace(base, probability=learnt), labels=labels)
    return published(made, domains)[1:]


def test_new_labels_replace_earlier_ones_unless_they_are_fewer(tiny: EncoderArtifact, domains: DomainStore) -> None:
    result(tiny, law(500, 0.0, 1), law(100, 0.0, 2)).publish(domains)
    added = post(domains, tiny, labelled(tiny, 1))
    assert added == (True, "it adds probabilities learnt from labels to the champion, version 1")
    again = post(domains, tiny, labelled(tiny, 1))
    assert again == (True, "it has learnt from 400 labelled pairs, and version 2 from 400")
    fewer = post(domains, tiny, labelled(tiny, 2, count=399))
    assert fewer == (False, "it has learnt from 399 labelled pairs, and version 3 from 400")
    promoted, why = post(domains, tiny, labelled(tiny, 3, graded=True))
    assert (promoted, why) == (False, "version 3 has learnt from matches and this version from grades")


@pytest.mark.parametrize("promote", ["always", "if_better"])
def test_no_version_that_makes_a_saved_target_unreachable_is_promoted_by_itself(
    tiny: EncoderArtifact, domains: DomainStore, promote: str
) -> None:
    result(tiny, law(500, 0.0, 1), law(100, 0.0, 2)).publish(domains)
    post(domains, tiny, labelled(tiny, 1))
    domains.set_target("news", "sure", Target(precision=0.8))
    domains.set_target("news", "usual", Target(fmr=0.01))
    better = result(tiny, law(500, 0.5, 3), law(100, 0.5, 4), promote)
    version, promoted, why = published(better, domains)
    assert (promoted, champion(domains, tiny)) == (False, 2)
    assert why.startswith("it would make saved thresholds unreachable: sure (domain 'news' was given no labels")
    assert list(domains.report("news", version)["unreachable"]) == ["sure"]
    assert not post(domains, tiny, labelled(tiny, 5, graded=True), promote)[0]
    domains.set_target("news", "sure", None)
    assert published(better, domains)[1] == (promote == "always")  # the champion's probabilities would be lost


@pytest.mark.parametrize("promote", ["always", "if_better"])
def test_labels_for_a_champion_that_was_replaced_meanwhile_do_not_bring_it_back(
    tiny: EncoderArtifact, domains: DomainStore, promote: str
) -> None:
    first = result(tiny, law(500, 0.0, 1), law(100, 0.0, 2), "always")
    first.publish(domains)
    posted = replace(first.request, promote=promote, base=1, champion=1)
    first.publish(domains)
    late = replace(first, request=posted, held_out=law(0, 0.0, 0))
    version, promoted, why = published(late, domains)
    assert (version, promoted, champion(domains, tiny)) == (3, False, 2)
    assert "version 2 became champion after the labels were posted" in why
    in_time = replace(late, request=replace(posted, base=2, champion=2))
    assert published(in_time, domains)[:2] == (4, True)


def begun(jobs: JobStore, request: JobRequest, champion: int | None) -> Job:
    """A job in its second attempt; its first one died when `champion` was the domain's champion."""
    post_job(jobs, request, ["A boat."])
    first = jobs.claim("worker", lambda _: champion)
    assert first is not None
    first.give_back("it died")
    again = jobs.claim("worker", lambda _: 99)
    assert again is not None
    return again.job


def test_a_job_that_is_repeated_after_a_later_promotion_replaces_no_newer_champion(
    tiny: EncoderArtifact, domains: DomainStore, tmp_path: Path
) -> None:
    old = result(tiny, law(500, 0.0, 1), law(100, 0.0, 2), "always")
    old.publish(domains)
    again = begun(jobs_of(tmp_path), old.request, champion(domains, tiny))
    old.publish(domains)
    made = replace(old, request=again.request)
    assert published(made, domains, again)[:2] == (3, False)
    assert champion(domains, tiny) == 2
    assert "version 2 has become champion since this job first began" in domains.report("news", 3)["promotion"]


def test_an_attempt_whose_place_was_taken_and_its_successor_publish_one_version(
    tiny: EncoderArtifact, domains: DomainStore, tmp_path: Path
) -> None:
    """It was allowed to publish, and then its process stood still for so long that it was taken for dead."""
    made = result(tiny, law(500, 0.0, 1), law(100, 0.0, 2), "always")
    second = begun(jobs_of(tmp_path), made.request, champion(domains, tiny))
    first = replace(second, attempt=1)
    assert published(made, domains, second)[:2] == (1, True)
    assert published(made, domains, first)[:2] == (1, True)
    assert (list(domains.read("news").versions), champion(domains, tiny)) == ([1], 1)


def test_a_version_does_not_replace_a_champion_that_came_while_it_was_written(
    tiny: EncoderArtifact, domains: DomainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, made = (result(tiny, law(500, 0.5, seed), law(100, 0.5, seed + 1)) for seed in (1, 1))
    upload = domains.blobs.upload
    late = iter([other])

    def promoted_meanwhile(key: str, file: Path) -> None:
        for one in late:
            assert published(one, domains)[:2] == (1, True)
        upload(key, file)

    monkeypatch.setattr(domains.blobs, "upload", promoted_meanwhile)
    version, promoted, why = published(made, domains)
    assert (version, promoted, champion(domains, tiny)) == (2, False, 1)
    assert "version 1 became champion while this one was written" in why
