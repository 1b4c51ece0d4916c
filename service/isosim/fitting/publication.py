"""Publishes the result of a calibration and decides whether it becomes the domain's champion."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from isosim.arrays import Rows, Vectors
from isosim.domains.domain import Domain, Version
from isosim.domains.history import Author, author
from isosim.domains.store import DomainStore, StoredVersion, written
from isosim.encoders.store import EncoderArtifact
from isosim.errors import Conflict, IsosimError
from isosim.fitting import evidence, reference
from isosim.fitting.calibrator import group_sizes
from isosim.fitting.methods import FittedMap, is_flow
from isosim.jobs.job import Job, JobRequest
from isosim.scoring.advice import lost_targets, told
from isosim.scoring.calibration import DomainModel
from isosim.scoring.reference import ReferenceDistribution

FEWEST_COMPARED = 20  # smallest number of held-out sentences on which versions are compared
HALVES = 40  # number of random halves of the held-out sentences that `_compare` draws for a standard error
MOST_PAIRS = 100_000
ATTEMPTS = 5  # comparisons with champions that others promote meanwhile
SURE = 1.64  # a difference of more standard errors than this is significant (one-sided, 5 %)


@dataclass(frozen=True)
class Result:
    """All parts of a version that is not published yet."""

    request: JobRequest
    encoder: EncoderArtifact
    fitted: FittedMap
    model: DomainModel
    held_out: Vectors
    report: dict[str, Any]

    def publish(self, domains: DomainStore, job: Job | None = None) -> tuple[int, bool, str]:
        """Writes the version, and makes it champion in the same write if `_wanted` decides so.

        If another version becomes champion meanwhile, this one is written without promotion, and then compared with
        that champion.

        Args:
            job: the job that made this result; None if it was made outside of a job. A job makes one version, also if
                it was attempted twice.

        Returns:
            The version's number, whether it is champion, and why or why not.

        Raises:
            OSError: the version could not be written.
            Conflict: the domain was deleted after the request.
        """
        request, digest = self.request, self.encoder.digest
        again = job is not None and job.attempt > 1
        now = domains.read(request.domain)
        champion = now.served(digest).champion
        promote, why = self._wanted(domains, now, again=again)
        version = Version(
            number=0,
            encoder=digest,
            encoder_id=self.encoder.id,
            method=self.fitted.method,
            files={},
            upload="",
            created="",
            job=None if job is None else job.id,
            sentences=self.report["sentences"],
            levels=tuple(group_sizes(self.encoder.spec.dim)) if is_flow(self.fitted.method) else (),
            seed=request.seed,
        )
        if job is not None:
            author.set(Author(job.owner, job=job.id))
        with written({**self.report, "promotion": why}, self.fitted.weights, self.model) as folder:
            number = domains.publish(
                request.domain,
                folder,
                version,
                epoch=request.epoch,
                promote=lambda domain: promote and domain.served(digest).champion == champion,
            ).number
        for _ in range(ATTEMPTS):
            now = domains.read(request.domain)
            champion = now.served(digest).champion
            if not promote or champion == number:
                return number, champion == number, why
            promote, why = self._wanted(domains, now, again=again)
            if promote:
                try:
                    domains.promote(request.domain, digest, number, revision=now.revision)
                except Conflict:  # the domain has changed again
                    continue
                except OSError as error:
                    why = f"it could not be promoted ({error.strerror or type(error).__name__})"
                    return number, False, f"{why}; to promote this one: PUT /domains/{request.domain}/champion"
        return number, False, f"other versions became champion first, in each of {ATTEMPTS} attempts"

    def _wanted(self, domains: DomainStore, domain: Domain, *, again: bool) -> tuple[bool, str]:
        """Whether to promote, and why; `again` is true if an earlier attempt of the same job was interrupted.

        A version that makes saved targets unreachable is never promoted; the report then names them as `unreachable`.
        """
        request = self.request
        champion = domain.served(self.encoder.digest).champion
        if request.promote == "never":
            return False, "promote: never"
        if newer := self._newer(champion, again=again):
            return False, newer
        stored, damage = None, ""
        if champion is not None:
            try:
                stored = domains.load(request.domain, champion)
            except IsosimError as error:
                damage = f"the champion, version {champion}, cannot be read: {error}"
        lost = {} if stored is None else lost_targets(stored.model, self.model, request.domain, domain.targets)
        self.report.pop("unreachable", None)
        if lost:
            self.report["unreachable"] = lost
            return False, f"it would make saved thresholds unreachable: {told(lost)}"
        if request.promote == "always":
            return True, "promote: always"
        return self._better(champion, stored, damage)

    def _better(self, champion: int | None, stored: StoredVersion | None, damage: str) -> tuple[bool, str]:
        """Whether this version is better than the champion, and why. `damage`: why the champion could not be read."""
        notice = (self.report.get("labels") or {}).get("notice")
        if notice is not None or champion is None:
            return notice is None, notice or "the domain had no champion"
        if stored is None:
            return True, damage
        if champion == self.request.base:
            return self._compare_labels(champion, stored.model)
        return self._compare(champion, stored)

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
            return f"{why}; to promote this one: PUT /domains/{request.domain}/champion"
        return None

    def _compare_labels(self, champion: int, base: DomainModel) -> tuple[bool, str]:
        """Decides whether new labels of the champion replace its earlier ones, and says why.

        They do if they are at least as many, or if their out-of-fold probabilities predict them not significantly worse
        than the champion's. (Labels are often posted again with further ones. The champion was then fitted to most of
        them, and seems to predict them better.)
        """
        if base.probability is None:
            return True, f"it adds probabilities learnt from labels to the champion, version {champion}"
        kind, earlier = ("grades" if graded else "matches" for graded in (self._graded, base.probability.graded))
        if kind != earlier:
            return False, f"version {champion} has learnt from {earlier} and this version from {kind}"
        labels, count = self.report["labels"]["pairs"], base.probability.pairs
        if labels >= count:
            return True, f"it has learnt from {labels:,} labelled pairs, and version {champion} from {count:,}"
        compared = self.report["labels"]["compared"]
        new, old = compared["loss"], compared["rival_loss"]
        measure = "squared error" if self._graded else "log-loss"
        what = f"the {measure} of these labels is {new:.4f} with this version and {old:.4f} with version {champion}"
        return new - old <= SURE * compared["standard_error"], what

    @property
    def _graded(self) -> bool:
        return self.model.probability is not None and self.model.probability.graded

    def _compare(self, champion: int, stored: StoredVersion) -> tuple[bool, str]:
        """Decides by the threshold errors on the new text whether to promote this version, and says why.

        A version's threshold error says how far its measured false-match rates are from the nominal rates (see
        `off_by`). The champion and the new version are measured on the same held-out sentences. The new version is
        promoted if its error is significantly smaller. The standard error of the difference is its standard deviation
        over random halves of the sentences (Politis & Romano, 1994).

        The new map was not fitted to the held-out sentences. The champion's map was fitted to them only if the same
        text was posted before. The new version has a small advantage: its reference distribution includes the held-out
        sentences. They are at most a tenth of the distribution's sentences, and are scored by maps that were fitted
        without them.
        """
        if stored.model.probability is not None and self.model.probability is None:
            return False, (
                f"version {champion} has a probability learnt from labels that callers would lose; to replace version "
                f"{champion}, calibrate again with labelled pairs"
            )
        ours, scale = self.model.reference, stored.model.reference
        if scale is None:
            return True, f"version {champion} has no reference distribution to compare with"
        if len(self.held_out) < FEWEST_COMPARED or ours is None:
            return False, f"there is no new text on which to compare this version with version {champion}"
        theirs = FittedMap(stored.version.method, stored.weights, {})(self.held_out)
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
            f"{np.exp(new):.3f} with this version and {np.exp(old):.3f} with version {champion}"
        )
        if old - new > SURE * unsure:
            return True, what
        return False, what + ("; the difference is not significant" if new < old else "")


def off_by(scale: ReferenceDistribution, pairs: reference.Pairs) -> float:
    """Threshold error: the mean |ln(measured / nominal)| over the nominal false-match rates.

    If many random pairs have the same similarity, the false-match rate jumps there, for example from 2 % to 6 %. Then
    no threshold has the nominal rate 5 %, and 6 % is used instead.
    """
    nominal = [scale.reachable(rate)[1] for rate in evidence.NOMINAL_RATES]
    return evidence.threshold_error(scale.percentile(pairs.similarities), nominal)
