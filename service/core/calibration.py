"""A calibration as serving sees it: an immutable version of a domain."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from service.core.domain_model import DomainModel
from service.core.errors import InvalidInput

Matrix = npt.NDArray[np.float32]  # (N, D)

DOMAIN_NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
DOMAIN_REF = re.compile(rf"(?P<name>{DOMAIN_NAME})(?:@(?P<version>[1-9][0-9]{{0,8}}|0|champion|previous))?")


@dataclass(frozen=True)
class DomainRef:
    """A domain and which of its versions: `name`, `name@3`, `name@previous`."""

    name: str
    version: int | str = "champion"

    @classmethod
    def parse(cls, text: str) -> "DomainRef":
        """Raises InvalidInput where the text is no reference."""
        match = DOMAIN_REF.fullmatch(text)
        if not match:
            raise InvalidInput(
                f"domain {text[:80]!r}: expected name, name@version or name@previous; a name has 1 to 64 of "
                "a-z, 0-9, '.', '_', '-' and starts with a letter or digit"
            )
        version = match["version"] or "champion"
        return cls(match["name"], int(version) if version.isdigit() else version)


@dataclass(frozen=True)
class Calibration:
    """One version of a domain. `transform` maps pooled (N, D) to latents (N, D); None is identity."""

    domain: str
    version: int
    method: str
    encoder: str  # digest
    transform: Callable[[Matrix], Matrix] | None = None
    model: DomainModel = field(default_factory=DomainModel)
    levels: tuple[int, ...] = ()  # channels of each level of a flow's latents; none for the other methods
    size: int = 0  # bytes it holds in memory, as far as whoever loaded it knows

    def latents(self, pooled: Matrix) -> Matrix:
        return pooled if self.transform is None else self.transform(pooled)
