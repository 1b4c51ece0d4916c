"""What a calibration made, and whether it becomes the domain's champion."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from service.adapters.domain_store import DomainStore
from service.adapters.encoder_store import EncoderArtifact
from service.core.domain_model import DomainModel
from service.core.errors import Conflict, IsosimError
from service.core.jobs import JobRequest
from service.core.reference import ReferenceDistribution
from service.modelling import measure, reference
from service.modelling.calibrator import group_sizes
from service.modelling.methods import Fitted, Vectors, is_flow


@dataclass(frozen=True)
class Result:
    """Everything a version consists of, not yet published."""

    request: JobRequest
    encoder: EncoderArtifact
    fitted: Fitted
    model: DomainModel
    held_out: Vectors
    report: dict[str, Any]

    def publish(self, domains: DomainStore) -> tuple[int, bool, str]:
        """Writes the version and promotes it if the request says so. -> version, promoted, why."""
        request = self.request
        manifest = {
            "method": self.fitted.method,
            "encoder": {"id": self.encoder.id, "digest": self.encoder.digest},
            "sentences": self.report["sentences"],
            "seed": request.seed,
            "levels": group_sizes(self.encoder.spec.dim) if is_flow(self.fitted.method) else [],
        }
        expected = domains.aliases(request.domain, self.encoder.digest)
        promote, why = self._wanted(domains, expected.champion)
        report = {**self.report, "promotion": why}
        version = domains.publish(request.domain, manifest, report, self.fitted.weights, self.model)
        for _ in range(5):
            if not promote:
                return version, False, why
            try:
                domains.promote(request.domain, self.encoder.digest, version, expected=expected)
            except Conflict:  # promotion is compare-and-set: whoever loses compares with the new champion
                expected = domains.aliases(request.domain, self.encoder.digest)
                promote, why = self._wanted(domains, expected.champion)
            else:
                return version, True, why
        return version, False, "other promotions kept winning"

    def _wanted(self, domains: DomainStore, champion: int | None) -> tuple[bool, str]:
        if self.request.promote != "if_better":
            return self.request.promote == "always", f"promote: {self.request.promote}"
        if champion is None:
            return True, "the domain had no champion"
        if champion == self.request.base:
            return True, f"the champion, version {champion}, with probabilities learnt from labels"
        return self._compare(domains, champion)

    def _compare(self, domains: DomainStore, champion: int) -> tuple[bool, str]:
        """Does the champion's scale still hold on the new text, and does the challenger's hold better?

        Both are measured on the same held-out sentences, which neither map was fitted on. Of the challenger's
        reference they are a tenth, scored by maps that had not seen them.
        """
        try:
            stored = domains.load(self.request.domain, champion)
        except IsosimError as error:
            return True, f"the champion, version {champion}, cannot be read: {error}"
        if stored.model.reference is None or self.model.reference is None or not len(self.held_out):
            return True, f"version {champion} and this one have no text or reference to be compared on"
        theirs = Fitted(stored.manifest["method"], stored.weights, {})
        numbers = np.arange(len(self.held_out))
        rng = np.random.default_rng(self.request.seed)

        def off_by(fitted: Fitted, scale: ReferenceDistribution) -> float:
            pairs = reference.sample_pairs([(fitted(self.held_out), numbers)], rng)
            return measure.threshold_error(scale.percentile(pairs.similarities))

        new, old = off_by(self.fitted, self.model.reference), off_by(theirs, stored.model.reference)
        what = (
            f"on {len(self.held_out)} new held-out sentences the false-match rate is off by a factor of "
            f"{np.exp(new):.3f} with this version and {np.exp(old):.3f} with version {champion}"
        )
        return new < old, what
