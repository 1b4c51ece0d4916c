"""Linear post-processing methods; each is an affine map y = (x − mean) · matrix."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from isosim.arrays import Doubles

# Vectors x and y are treated as equal if ‖x − y‖² / ‖y‖² is at most this value. For vectors that differ only by
# rounding to float32, the quotient is about 1e-14.
LEAST_SPREAD = 1e-10
CHUNK = 1000  # number of vectors processed at once
SOFT_SHARE = 0.5  # weight of the covariance in `soft_whitening` at strength 1; the rest is the identity


@dataclass(frozen=True)
class Affine:
    """An affine map: mean (D,) and matrix (D, D)."""

    mean: Doubles
    matrix: Doubles

    def __call__(self, x: Doubles) -> Doubles:  # (N, D) -> (N, D)
        return (x - self.mean) @ self.matrix


@dataclass(frozen=True)
class Spectrum:
    """Mean and covariance of a sample of vectors; the covariance is stored as its eigenvalues and eigenvectors.

    `mean` is (D,), `values` (D,) in descending order, `vectors` (D, D) in columns. The covariance is shrunk (Ledoit &
    Wolf, 2004), because whitening with the unshrunk covariance of few sentences fails.
    """

    mean: Doubles
    values: Doubles
    vectors: Doubles
    shrinkage: float

    @classmethod
    def from_vectors(cls, x: npt.NDArray[np.floating], shrinkage: float | None = None) -> "Spectrum":  # (N, D)
        """Computes the spectrum of x. If `shrinkage` is None, the formula of Ledoit & Wolf gives it.

        To save memory, only 1,000 rows at a time are converted to float64. For 100,000 rows of 1,536 dimensions,
        scikit-learn's `ledoit_wolf` would need 2.5 GB.
        """
        mean = x.mean(0, dtype=np.float64)
        scatter, fourth = np.zeros((len(mean), len(mean))), 0.0
        for start in range(0, len(x), CHUNK):
            centred = x[start : start + CHUNK] - mean
            scatter += centred.T @ centred
            fourth += float(np.square(np.vecdot(centred, centred)).sum())
        scatter /= len(x)
        if shrinkage is None:
            shrinkage = ledoit_wolf_intensity(scatter, fourth / len(x), len(x))
        covariance = shrunk_covariance(scatter, shrinkage)
        values, vectors = np.linalg.eigh(covariance)
        return cls(mean, np.maximum(values[::-1], 1e-12 * values[-1]), vectors[:, ::-1], float(shrinkage))


def shrunk_covariance(covariance: Doubles, shrinkage: float) -> Doubles:
    """(1 − s)·C + s·(tr C / D)·I for a covariance C (D, D) and a shrinkage s, 0–1 (Ledoit & Wolf, 2004, eq. 3)."""
    shrunk = (1.0 - shrinkage) * covariance
    shrunk[np.diag_indices_from(shrunk)] += shrinkage * np.trace(covariance) / len(covariance)
    return shrunk


def ledoit_wolf_intensity(covariance: Doubles, fourth: float, count: int) -> float:
    """Optimal shrinkage of a covariance (D, D) towards a multiple of the identity, 0–1 (Ledoit & Wolf, 2004, 3.2).

    Args:
        fourth: mean of the centred vectors' norms to the fourth power.
        count: number of vectors from which the covariance was computed.
    """
    dim = len(covariance)
    own = float(np.square(covariance).sum())
    distance = own - np.trace(covariance) ** 2 / dim
    error = (fourth - own) / count
    return float(min(error, distance) / distance) if distance > 0 and error > 0 else 0.0


def all_equal(x: npt.NDArray[Any]) -> bool:  # (N, D) -> scalar
    """Whether all vectors are equal within rounding; stops at the first chunk with a different vector."""
    most = LEAST_SPREAD * np.square(x[0]).sum()
    return all((np.square(x[start : start + CHUNK] - x[0]).sum(1) <= most).all() for start in range(0, len(x), CHUNK))


def share_of_one(x: npt.NDArray[Any]) -> float:  # (N, D) -> scalar
    """Share of the vectors that equal the median vector except for rounding, estimated from about 1,000 vectors.

    If more than half of the vectors are equal, they equal the median vector. So a result above 0.5 is the share of
    equal vectors.
    """
    some = x[:: max(1, len(x) // CHUNK)]
    middle = np.median(some, axis=0)
    return float(np.mean(np.square(some - middle).sum(1) <= LEAST_SPREAD * np.square(middle).sum()))


def crowding(x: Doubles) -> float:  # (N, D) -> scalar
    """Squared norm of the mean unit vector, which is the mean cosine of random pairs (Ethayarajh, 2019, section 4).

    >>> crowding(np.array([[2.0, 0.0], [0.0, 1.0]]))
    0.5
    """
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    return float(np.square(unit.mean(0)).sum())


def identity(dim: int) -> Affine:
    return Affine(np.zeros(dim), np.eye(dim))


def centring(s: Spectrum) -> Affine:
    return Affine(s.mean, np.eye(len(s.mean)))


def mean_direction(x: Doubles, share: float) -> Affine:
    """Removes a share of each vector's component along the mean unit vector, without centring (arXiv 2511.11041).

    Raises:
        ValueError: the share is outside 0–1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"mean-direction: the share must be within 0 to 1; got {share}")
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-300)
    mean = unit.mean(0)
    direction = mean / max(float(np.linalg.norm(mean)), 1e-300)
    return Affine(np.zeros(x.shape[1]), np.eye(x.shape[1]) - share * np.outer(direction, direction))


def standard_normalization(x: Doubles) -> Affine:
    """SN: zero mean and unit variance in each dimension (BERT-flow, section 5.2)."""
    deviation = x.std(0)
    return Affine(x.mean(0), np.diag(1 / np.maximum(deviation, 1e-3 * deviation.mean())))


def nulling(s: Spectrum, k: int) -> Affine:
    """NATSV: centres vectors and removes their top k principal directions (Mu & Viswanath, 2018, algorithm 1)."""
    top = s.vectors[:, :k]
    return Affine(s.mean, np.eye(len(s.mean)) - top @ top.T)


def standard_nulling(x: Doubles, k: int, shrinkage: float | None = None) -> tuple[Affine, float]:
    """SN followed by NATSV (BERT-flow, table 5). Also returns the shrinkage, so that fits to folds can reuse it."""
    standard = standard_normalization(x)
    spectrum = Spectrum.from_vectors(standard(x), shrinkage)
    return Affine(standard.mean, standard.matrix @ nulling(spectrum, k).matrix), spectrum.shrinkage


def whitening(s: Spectrum, *, power: float = 1.0, centre: float = 1.0, keep: int | None = None) -> Affine:
    """(Partial) whitening: y = (x − centre·μ) U Λ^(−power/2) Uᵀ, with mean μ, eigenvectors U and eigenvalues Λ.

    Power 1 is whitening (Su et al., 2021, algorithm 1). Power 0 with centre 0 is the identity. If `keep` is given, only
    the first `keep` eigenvectors are used (whitening-k). The rotation back by Uᵀ changes no cosine.

    >>> x = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    >>> spectrum = Spectrum.from_vectors(x, shrinkage=0.0)
    >>> spectrum.values.round(3)
    array([2. , 0.5])
    >>> np.cov(whitening(spectrum)(x).T, bias=True).round(3)
    array([[1., 0.],
           [0., 1.]])
    """
    scale = s.values ** (-power / 2)
    if keep is not None:
        scale = np.where(np.arange(len(scale)) < keep, scale, 0.0)
    return Affine(centre * s.mean, (s.vectors * scale) @ s.vectors.T)


def tempered_whitening(s: Spectrum, crowding: float) -> Affine:
    """Partial whitening with power c and centre min(1, 2c), where the crowding c is the mean cosine of random pairs."""
    return whitening(s, power=crowding, centre=min(1.0, 2 * crowding))


def soft_whitening(s: Spectrum, strength: float) -> Affine:
    """Whitening by a mix of covariance and identity: the identity alone at strength 0, equal parts at strength 1.

    y = (x − strength·μ) U M^(−1/2) Uᵀ, with mean μ and eigenvectors U. M is diagonal. Its entry for the eigenvalue λ is
    1 − s + s · λ / mean(λ), with s = strength / 2. This shrinks the few directions with large λ. The many directions
    with small λ, which are noisy, grow by a factor of at most √2 (Soft-ZCA, Diera et al., 2024, section 3).

    Raises:
        ValueError: the strength is outside 0–1.
    """
    if not 0 <= strength <= 1:
        raise ValueError(f"soft: the strength must be within 0 to 1; got {strength}")
    scale = (1 + SOFT_SHARE * strength * (s.values / s.values.mean() - 1)) ** -0.5
    return Affine(strength * s.mean, (s.vectors * scale) @ s.vectors.T)
