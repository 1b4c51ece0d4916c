"""The encoder's tokenizer (Hugging Face tokenizers): texts to ids, with a mark where a text was cut."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from service.core.errors import TokenizerFailure
from service.core.texts import Side, Tokens


class FastTokenizer:
    """Truncates at `max_length` tokens, special tokens included; never pads. Safe from any thread."""

    def __init__(self, path: Path, max_length: int) -> None:
        self.max_length = max_length
        self.sides: dict[Side, Tokenizer] = {"right": self._open(path, "right"), "left": self._open(path, "left")}

    def _open(self, path: Path, side: Side) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_length, direction=side)
        return tokenizer

    def __call__(self, texts: Sequence[str], side: Side) -> list[Tokens]:
        """Raises TokenizerFailure where a text cannot be turned into tokens."""
        try:
            encodings = self.sides[side].encode_batch_fast(texts)
        except Exception as error:  # tokenizers raises bare Exceptions
            raise TokenizerFailure(f"a text cannot be tokenized: {error}") from error
        return [Tokens(encoding.ids, bool(encoding.overflowing)) for encoding in encodings]
