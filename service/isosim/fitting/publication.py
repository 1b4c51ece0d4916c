"""Publishes a fitted calibration, and decides whether it becomes the domain's champion."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from isosim.arrays import Rows, Vectors
from isosim.domains.domain import Domain, Version
from isosim.domains.history import Author, author
from isosim.domains.store import DomainStore, StoredVersion, written
from isosim.encoders.store import EncoderArtifact
from isosim.errors import IsosimError
from isosim.fitting import evidence, reference
from isosim.fitting.calibrator import group_sizes
from isosim.fitting.methods import FittedMap
from isosim.fitting.report import LabelReport
from isosim.jobs.job import Job, JobRequest
from isosim.scoring.advice import lost_targets, told
from isosim.scoring.calibration import DomainModel
from isosim.scoring.method import Method
from isosim.scoring.reference import ReferenceDistribution

FEWEST_COMPARED = 20  # smallest number of held-out sentences on which versions are compared
HALVES = 40  # number of random halves of the held-out sentences that `better_than` draws for a standard error
MOST_PAIRS = 100_000
SURE = 1.64  # a difference of more standard errors than this is significant (one-sided, 5 %)


class Decision(NamedTuple):
    """Whether a version is to be champion, and why; after `Fit.publish`, whether it is."""

    promoted: bool
    why: str
    lost: Mapping[str, str] = {}  # saved targets that the version would make unreachable: name -> why
    version: int = 0  # 0: it is not written yet


@dataclass(frozen=True)
class Fit:
    """A calibration that is not published yet."""

    request: JobRequest
    encoder: EncoderArtifact
    fitted: FittedMap
    model: DomainModel
    held_out: Vectors
    report: dict[str, Any]  # for JSON
    labels: LabelReport | None = None

    def publish(self, domains: DomainStore, job: Job | None = None) -> Decision:
        """Writes the version, and makes it champion in the same write if `decide` says so.

        If another version becomes champion meanwhile, this one is written without promotion.

        Args:
            job: the job that made this fit; None if it was made outside of a job. A job makes one version, also if
                it was attempted twice.

        Raises:
            OSError: the version could not be written.
            Conflict: the domain was deleted after the request.
        """
        request, digest = self.request, self.encoder.digest
        again = job is not None and job.attempt > 1
        now = domains.read(request.domain)
        replaced = now.served(digest).champion
        decision = self.decide(domains, now, again=again)
        version = Version(
            number=0,
            encoder=digest,
            encoder_id=self.encoder.id,
            method=str(self.fitted.method),
            files={},
            upload="",
            created="",
            job=None if job is None else job.id,
            sentences=self.report["sentences"],
            levels=tuple(group_sizes(self.encoder.spec.dim)) if self.fitted.method.is_flow else (),
            seed=request.seed,
        )
        if job is not None:
            author.set(Author(job.owner, job=job.id))
        with written(self.report_with(decision), self.fitted.weights, self.model) as folder:
            number = domains.publish(
                request.domain,
                folder,
                version,
                epoch=request.epoch,
                promote=lambda domain: decision.promoted and domain.served(digest).champion == replaced,
            ).number
        champion = domains.read(request.domain).served(digest).champion
        if decision.promoted and champion != number:
            other = f"version {champion}" if champion else "another version"
            why = f"{other} became champion while this one was written, which can still be promoted"
            return Decision(False, why, version=number)
        return decision._replace(version=number, promoted=champion == number)

    def report_with(self, decision: Decision) -> dict[str, Any]:
        """The report, for JSON, with the decision."""
        lost = {"unreachable": decision.lost} if decision.lost else {}
        return {**self.report, **lost, "promotion": decision.why}

    def decide(self, domains: DomainStore, domain: Domain, *, again: bool) -> Decision:
        """Whether to promote; `again` is true if an earlier attempt of the same job was interrupted.

        A version that makes saved targets unreachable is never promoted.
        """
        request = self.request
        champion = domain.served(self.encoder.digest).champion
        if kept := "promote: never" if request.promote == "never" else self._newer(champion, again=again):
            return Decision(False, kept)
        stored, damage = None, ""
        if champion is not None:
            try:
                stored = domains.load(request.domain, champion)
            except IsosimError as error:
                damage = f"the champion, version {champion}, cannot be read: {error}"
        lost = {} if stored is None else lost_targets(stored.model, self.model, request.domain, domain.targets)
        if lost:
            return Decision(False, f"it would make saved thresholds unreachable: {told(lost)}", lost)
        if request.promote == "always":
            return Decision(True, "promote: always")
        if self.labels is not None and self.labels.notice is not None:
            return Decision(False, self.labels.notice)
        if stored is None:
            return Decision(True, damage or "the domain had no champion")
        return self.better_than(stored)

    def _newer(self, champion: int | None, *, again: bool) -> str | None:
        """Reason to keep a champion that was promoted after this job was requested; None if there is no such reason."""
        request = self.request
        if champion == request.champion:
            return None
        if request.base is not None:
            return (
                f"version {champion} became champion after the labels were posted; "
                "post them again to learn probabilities for that version"
            )
        if request.promote == "always" and again and champion is not None:
            why = f"version {champion} has become champion since this job first began"
            return f"{why}; this one can still be promoted"
        return None

    def better_than(self, champion: StoredVersion) -> Decision:
        """Whether this version is better than the champion.

        A version made from text is compared by the threshold errors on the new text. A version's threshold error says
        how far its measured false-match rates are from the nominal rates (see `off_by`). Both versions are measured on
        the same held-out sentences. The new version is better if its error is significantly smaller. The standard error
        of the difference is its standard deviation over random halves of the sentences (Politis & Romano, 1994).

        The new map was not fitted to the held-out sentences. The champion's map was fitted to them only if the same
        text was posted before. The new version has a small advantage: its reference distribution includes the held-out
        sentences. They are at most a tenth of the distribution's sentences, and are scored by maps that were fitted
        without them.
        """
        version, scale = f"version {champion.version.number}", champion.model.reference
        if champion.version.number == self.request.base:
            return self._has_learnt_more_than(champion)
        if champion.model.probability is not None and self.model.probability is None:
            return Decision(
                False,
                f"{version} has a probability learnt from labels that callers would lose; to replace {version}, "
                "calibrate again with labelled pairs",
            )
        ours = self.model.reference
        if scale is None:
            return Decision(True, f"{version} has no reference distribution to compare with")
        if len(self.held_out) < FEWEST_COMPARED or ours is None:
            return Decision(False, f"there is no new text on which to compare this version with {version}")
        theirs = FittedMap(Method.parse(champion.version.method), champion.weights)(self.held_out)
        mine = self.fitted(self.held_out)
        rng = np.random.default_rng(self.request.seed)

        def errors(rows: Rows) -> tuple[float, float]:
            numbers = np.arange(len(rows))
            one, other = np.random.default_rng(0), np.random.default_rng(0)  # both draw the same pairs
            return (
                off_by(ours, reference.sample_pairs([(mine[rows], numbers)], one, MOST_PAIRS)),
                off_by(scale, reference.sample_pairs([(theirs[rows], numbers)], other, MOST_PAIRS)),
            )

        new, old = errors(np.arange(len(mine)))
        halves = [errors(rng.permutation(len(mine))[: len(mine) // 2]) for _ in range(HALVES)]
        unsure = float(np.std([before - after for after, before in halves]))
        what = (
            f"on {len(self.held_out)} new held-out sentences the false-match rate is off by a factor of "
            f"{np.exp(new):.3f} with this version and {np.exp(old):.3f} with {version}"
        )
        better = old - new > SURE * unsure
        return Decision(better, what + ("; the difference is not significant" if new < old and not better else ""))

    def _has_learnt_more_than(self, base: StoredVersion) -> Decision:
        """Whether new labels of the champion replace its earlier ones: if they are of the same kind, and as many."""
        version, earlier, learnt = f"version {base.version.number}", base.model.probability, self.model.probability
        if earlier is None or learnt is None:
            return Decision(True, f"it adds probabilities learnt from labels to the champion, {version}")
        if learnt.graded != earlier.graded:
            theirs, ours = ("grades" if one.graded else "matches" for one in (earlier, learnt))
            return Decision(False, f"{version} has learnt from {theirs} and this version from {ours}")
        why = f"it has learnt from {learnt.pairs:,} labelled pairs, and {version} from {earlier.pairs:,}"
        return Decision(learnt.pairs >= earlier.pairs, why)


def off_by(scale: ReferenceDistribution, pairs: reference.Pairs) -> float:
    """Threshold error: the mean |ln(measured / nominal)| over the nominal false-match rates.

    If many random pairs have the same similarity, the false-match rate jumps there, for example from 2 % to 6 %. Then
    no threshold has the nominal rate 5 %, and 6 % is used instead.
    """
    nominal = [scale.reachable(rate)[1] for rate in evidence.NOMINAL_RATES]
    return evidence.threshold_error(scale.percentile(pairs.similarities), nominal)
