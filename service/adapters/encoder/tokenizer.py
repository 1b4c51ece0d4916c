"""Converts texts to token ids with Hugging Face tokenizers, and marks texts that were cut."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece

from service.core.encoding.texts import Content, Side, Tokens
from service.core.errors import InvalidInput, TokenizerFailure


class Piece(NamedTuple):
    """One token of a text and its range of characters. A special token has no range: `start` and `stop` are None."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


SPACE = "▁"  # SentencePiece's sign for the space before a word


class FastTokenizer:
    """Cuts texts at `max_length` tokens, including special tokens. Never pads. Thread-safe.

    A text is marked `unreadable` if all its tokens are special or unknown. If the text begins with one of `prompts`,
    the tokens of the prompt do not count, unless the text is only the prompt.
    """

    def __init__(self, path: Path, max_length: int, prompts: Iterable[str] = ()) -> None:
        self.max_length = max_length
        self.sides: dict[Side, Tokenizer] = {"right": self._open(path, "right"), "left": self._open(path, "left")}
        self.whole = self._open(path, None)
        self.size: int = self.whole.get_vocab_size(with_added_tokens=True)
        self.unknown = frozenset(unknown_ids(self.whole, path))
        self.prompts = sorted({prompt for prompt in prompts if prompt}, key=len, reverse=True)
        known = [number for prompt in self.prompts for number in self.whole.encode(prompt).ids]
        # An unreadable text has only these ids. A text with any other id is readable.
        self._suspected = self.unknown.union(known)

    def _open(self, path: Path, side: Side | None) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        if side is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(self.max_length, direction=side)
        return tokenizer

    def __call__(self, contents: Sequence[Content], side: Side) -> list[Tokens]:
        """Tokenizes and cuts texts. Contents that are token ids are only cut. Raises TokenizerFailure if a text cannot
        be tokenized."""
        texts = [content for content in contents if isinstance(content, str)]
        try:
            encodings = iter(self.sides[side].encode_batch_fast(texts))
        except Exception as error:  # `tokenizers` raises plain Exception
            raise TokenizerFailure(f"a text cannot be tokenized: {error}") from error
        tokens = []
        for content in contents:
            if isinstance(content, str):
                encoding = next(encodings)
                ids, truncated = encoding.ids, bool(encoding.overflowing)
            else:
                kept = content[: self.max_length] if side == "right" else content[-self.max_length :]
                ids, truncated = list(kept), len(kept) < len(content)
            # `issuperset` is fast: it stops at the first id that is not suspected, usually the id after [CLS].
            # `_is_unreadable` is slower, and is called only if all ids are suspected.
            unreadable = self._suspected.issuperset(ids) and self._is_unreadable(content, ids, side)
            tokens.append(Tokens(ids, truncated, unreadable))
        return tokens

    def _is_unreadable(self, content: Content, ids: Sequence[int], side: Side) -> bool:
        """Whether all tokens are special or unknown. If the text begins with a prompt, the tokens of the prompt do not
        count, unless the text is only the prompt."""
        if self.unknown.issuperset(ids):
            return True
        if not isinstance(content, str):
            return False
        begin = next((len(prompt) for prompt in self.prompts if content.startswith(prompt)), 0)
        # The text is only a prompt, and at least one of its tokens is neither special nor unknown.
        if not content[begin:].strip():
            return False
        encoding = self.sides[side].encode(content)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        return all(number in self.unknown or stop <= begin for number, (_, stop) in places)

    def pieces(self, texts: Sequence[str], *, special: bool) -> list[list[Piece]]:
        """All tokens of each text, without truncation. Raises TokenizerFailure."""
        try:
            encodings = self.whole.encode_batch(list(texts), add_special_tokens=special)
        except Exception as error:  # `tokenizers` raises plain Exception
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
        """Texts for lists of token ids. Raises InvalidInput if an id is not in this vocabulary."""
        for row in rows:
            self.check(row)
        return [self.whole.decode(list(row), skip_special_tokens=skip_special) for row in rows]

    def check(self, ids: Sequence[int]) -> None:
        """Raises InvalidInput if an id is not in this vocabulary."""
        wrong = next((number for number in ids if not 0 <= number < self.size), None)
        if wrong is not None:
            raise InvalidInput(f"token id {wrong} is not in this encoder's vocabulary, which has {self.size} tokens")


def unknown_ids(tokenizer: Tokenizer, path: Path) -> list[int]:
    """Ids of tokens without content: special tokens, the unknown token, and SentencePiece's token for a single
    space."""
    ids = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    model = tokenizer.model
    names: list[str | None] = [SPACE] if isinstance(model, BPE | Unigram) else []
    if isinstance(model, BPE | WordPiece | WordLevel):
        names.append(model.unk_token)
    else:
        number = orjson.loads(path.read_bytes())["model"].get("unk_id")  # `Unigram` has no attribute for this id
        ids += [] if number is None else [number]
    return ids + [number for name in names if name and (number := tokenizer.token_to_id(name)) is not None]
