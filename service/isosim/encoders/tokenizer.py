"""Converts texts to token ids with Hugging Face tokenizers, and marks texts that were cut."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece

from isosim.encoders.plain_words import PlainWords
from isosim.encoders.texts import Side, Tokens
from isosim.errors import TokenizerFailure


class Piece(NamedTuple):
    """One token of a text and its range of characters. A special token has no range: `start` and `stop` are None."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


SPACE = "▁"  # SentencePiece's sign for the space before a word
# A text is unreadable if a larger share of its words is unknown to the encoder. At this share, a threshold for 1 %
# passes about a third of random pairs, and no text of 146,000 English sentences has a larger share (docs/quality.md,
# "Unknown words").
MOST_UNKNOWN = 1 / 3


class FastTokenizer:
    """Cuts texts at `max_length` tokens, including special tokens. Never pads. Thread-safe.

    A text is marked `unreadable` if more than MOST_UNKNOWN of its word tokens are the unknown token, or if it has only
    special tokens. Word tokens are the unknown token and tokens with a letter; digits and punctuation do not count. If
    the text begins with one of `prompts`, the tokens of the prompt do not count, unless the text is only the prompt.
    """

    def __init__(self, path: Path, max_length: int, prompts: Iterable[str] = ()) -> None:
        self.max_length = max_length
        self.sides: dict[Side, Tokenizer] = {"right": self._open(path, "right"), "left": self._open(path, "left")}
        self.whole = self._open(path, None)
        self.plain = PlainWords.of(self.whole)
        self.size: int = self.whole.get_vocab_size(with_added_tokens=True)
        # Some tokenizers use one token as the unknown token and as the end of every text.
        self.unknown = frozenset(unknown_ids(self.whole, path)).difference(self.whole.encode("").ids)
        # Ids of tokens without content; a text that has only these is unreadable.
        self.blank = self.unknown.union(special_ids(self.whole))
        self.prompts = sorted({prompt for prompt in prompts if prompt}, key=len, reverse=True)
        known = [number for prompt in self.prompts for number in self.whole.encode(prompt).ids]
        # An unreadable text has only these ids, or an unknown token. All other texts are readable.
        self._suspected = self.blank.union(known)

    def _open(self, path: Path, side: Side | None) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        if side is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(self.max_length, direction=side)
        return tokenizer

    def __call__(self, texts: Sequence[str], side: Side) -> list[Tokens]:
        """Tokenizes and cuts texts. Raises TokenizerFailure if a text cannot be tokenized."""
        plain = [None if self.plain is None else self.plain(text, self.max_length) for text in texts]
        others = [text for text, ids in zip(texts, plain, strict=True) if ids is None]
        try:
            encodings = iter(self.sides[side].encode_batch_fast(others) if others else ())
        except Exception as error:  # `tokenizers` raises plain Exception
            raise TokenizerFailure(f"a text cannot be tokenized: {error}") from error
        tokens = []
        for text, known in zip(texts, plain, strict=True):
            ids, truncated = known or [], False
            if known is None:
                encoding = next(encodings)
                ids, truncated = encoding.ids, bool(encoding.overflowing)
            # Nearly all texts have no unknown token. `issuperset` stops at the first id that is not suspected, usually
            # the id after [CLS].
            unknown = not self.unknown.isdisjoint(ids)
            unreadable = (unknown or self._suspected.issuperset(ids)) and self._is_unreadable(text, ids, side)
            tokens.append(Tokens(ids, truncated, unreadable, hash_of(ids) if unknown and not truncated else 0))
        return tokens

    def _is_unreadable(self, text: str, ids: Sequence[int], side: Side) -> bool:
        """See the class. `ids` are the tokens of `text`, cut from `side`."""
        if self.blank.issuperset(ids):
            return True
        prompt = next((one for one in self.prompts if text.startswith(one)), "")
        if prompt:
            if not text[len(prompt) :].strip():  # only a prompt, with at least one known token
                return False
            encoding = self.sides[side].encode(text)
            places = zip(encoding.ids, encoding.offsets, strict=True)
            ids = [number for number, (_, stop) in places if stop > len(prompt)]  # without special tokens
        unknown = sum(number in self.unknown for number in ids)
        if not unknown:
            return self.blank.issuperset(ids)
        return unknown > MOST_UNKNOWN * (unknown + sum(map(self._is_word, ids)))

    def _is_word(self, number: int) -> bool:
        """Whether a known token has a letter."""
        return number not in self.blank and any(map(str.isalpha, self.whole.id_to_token(number) or ""))

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


def special_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of special tokens, and of SentencePiece's token for a single space."""
    ids = [number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special]
    space = tokenizer.token_to_id(SPACE) if isinstance(tokenizer.model, BPE | Unigram) else None
    return ids if space is None else [*ids, space]


def unknown_ids(tokenizer: Tokenizer, path: Path) -> list[int]:
    """The id of the unknown token. The list is empty if the tokenizer has none, like those that fall back to bytes."""
    model = tokenizer.model
    if isinstance(model, BPE | WordPiece | WordLevel):
        number = tokenizer.token_to_id(model.unk_token) if model.unk_token else None
    else:
        number = orjson.loads(path.read_bytes())["model"].get("unk_id")  # `Unigram` has no attribute for this id
    return [] if number is None else [number]


def hash_of(ids: Sequence[int]) -> int:  # 64 bits, never 0
    return int.from_bytes(hashlib.blake2b(np.array(ids, "<i8").tobytes(), digest_size=8).digest(), "little") or 1
