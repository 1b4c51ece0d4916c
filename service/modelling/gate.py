"""Which method a domain gets when it asks for `auto`.

Interim rule: how crowded the raw space is (the mean cosine of random pairs) decides alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.modelling.linear import crowding

CROWDED = 0.15  # tuned encoders have 0.02–0.06, raw ones 0.28 and more (QUALITY section 3)
FLOW_SENTENCES = 500


@dataclass(frozen=True)
class Choice:
    """A method and why it was chosen, in a sentence for the report."""

    method: str
    reason: str
    crowding: float


def choose(vectors: npt.NDArray[np.float32]) -> Choice:
    """The method for these distinct sentences' vectors (N, D)."""
    c = crowding(vectors.astype(np.float64))
    if c < CROWDED:
        reason = (
            f"random pairs have a mean cosine of {c:.3f}, below {CROWDED}: the encoder spreads this text well, "
            "and every correction tried on such a space made ranking worse; scores keep their raw cosine"
        )
        return Choice("identity", reason, c)
    crowded = f"random pairs have a mean cosine of {c:.3f}, at or above {CROWDED}: the space is crowded"
    if len(vectors) < FLOW_SENTENCES:
        reason = f"{crowded}; {len(vectors)} sentences are too few for a flow, tempered whitening needs no more"
        return Choice("tempered", reason, c)
    return Choice("flow", f"{crowded}; a flow fitted to this text spreads it", c)
