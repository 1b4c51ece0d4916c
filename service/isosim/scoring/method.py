"""The name of a post-processing method, with its strength."""

from dataclasses import dataclass
from typing import Self

# Methods that contain a flow, which is trained by gradient descent from a seed.
FLOWS = {"flow", "flow-paper", "soft-flow"}
SOFT = {"soft", "soft-flow"}


@dataclass(frozen=True)
class Method:
    """A method such as `whitening`, with its strength if it has one.

    The strength of `soft` and `soft-flow` is within 0 to 1, that of `partial` the power, that of `mean-direction` the
    removed share, that of `nulling` and `sn-nulling` the number of directions, that of `whitening-k` the number of
    dimensions. None is the method's default. `fitting/methods.py` knows which methods exist.
    """

    name: str
    strength: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a method's written form; raises ValueError if the strength is not a number.

        >>> Method.parse("soft:0.771"), Method.parse("whitening")
        (Method(name='soft', strength=0.771), Method(name='whitening', strength=None))
        """
        name, colon, strength = text.partition(":")
        return cls(name, float(strength) if colon else None)

    def __str__(self) -> str:
        """The written form. The strength of soft methods has three decimals, as the gate rounds it.

        >>> str(Method("soft", 0.9)), str(Method("soft", 1)), str(Method("nulling", 3)), str(Method("partial", 0.5))
        ('soft:0.900', 'soft:1', 'nulling:3', 'partial:0.5')
        """
        if self.strength is None:
            return self.name
        decimals = ".3f" if self.name in SOFT and not float(self.strength).is_integer() else "g"
        return f"{self.name}:{self.strength:{decimals}}"

    @property
    def is_flow(self) -> bool:
        return self.name in FLOWS


IDENTITY = Method("identity")
