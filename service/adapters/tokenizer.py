"""The encoder's tokenizer (Hugging Face tokenizers): texts to ids, with a mark where a text was cut."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from service.core.errors import InvalidInput, TokenizerFailure
from service.core.texts import Content, Side, Tokens


class Piece(NamedTuple):
    """One token of a text, and the characters it stands for; a special token stands for none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class FastTokenizer:
    """Truncates at `max_length` tokens, special tokens included; never pads. Safe from any thread."""

    def __init__(self, path: Path, max_length: int) -> None:
        self.max_length = max_length
        self.sides: dict[Side, Tokenizer] = {"right": self._open(path, "right"), "left": self._open(path, "left")}
        self.whole = self._open(path, None)
        self.size: int = self.whole.get_vocab_size(with_added_tokens=True)

    def _open(self, path: Path, side: Side | None) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        if side is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(self.max_length, direction=side)
        return tokenizer

    def __call__(self, contents: Sequence[Content], side: Side) -> list[Tokens]:
        """Raises TokenizerFailure where a text cannot be turned into tokens. What is tokens already is only cut."""
        texts = [content for content in contents if isinstance(content, str)]
        try:
            encodings = iter(self.sides[side].encode_batch_fast(texts))
        except Exception as error:  # tokenizers raises bare Exceptions
            raise TokenizerFailure(f"a text cannot be tokenized: {error}") from error
        if len(texts) == len(contents):
            return [Tokens(encoding.ids, bool(encoding.overflowing)) for encoding in encodings]
        tokens = []
        for content in contents:
            if isinstance(content, str):
                encoding = next(encodings)
                tokens.append(Tokens(encoding.ids, bool(encoding.overflowing)))
            else:
                kept = content[: self.max_length] if side == "right" else content[-self.max_length :]
                tokens.append(Tokens(list(kept), len(kept) < len(content)))
        return tokens

    def pieces(self, texts: Sequence[str], *, special: bool) -> list[list[Piece]]:
        """Every token of each text, uncut. Raises TokenizerFailure."""
        try:
            encodings = self.whole.encode_batch(list(texts), add_special_tokens=special)
        except Exception as error:  # tokenizers raises bare Exceptions
            raise TokenizerFailure(f"a text cannot be tokenized: {error}") from error
        return [
            [
                Piece(number, token, True, None, None) if mask else Piece(number, text[start:stop], False, start, stop)
                for number, token, mask, (start, stop) in zip(
                    encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
                )
            ]
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def decode(self, rows: Sequence[Sequence[int]], *, skip_special: bool) -> list[str]:
        """Texts of token ids. Raises InvalidInput where an id is not of this vocabulary."""
        for row in rows:
            self.check(row)
        return [self.whole.decode(list(row), skip_special_tokens=skip_special) for row in rows]

    def check(self, ids: Sequence[int]) -> None:
        """Raises InvalidInput where an id is not of this vocabulary."""
        wrong = next((number for number in ids if not 0 <= number < self.size), None)
        if wrong is not None:
            raise InvalidInput(f"token id {wrong} is not of this encoder's vocabulary, which has {self.size}")
