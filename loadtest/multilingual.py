"""A small multilingual encoder for measuring, taught by `minilm` on translated sentences (no part of the product).

Multilingual distillation (Reimers & Gurevych, 2020, section 2): a sentence and its translations get the vector that
the English teacher gives to the sentence. The sentences are those of the gettext catalogues of six repositories, at
pinned commits; half of them teach, the other half are written out, a file a language, for `isosim measure languages`:

    python -m loadtest.multilingual OUT
    isosim export --encoder OUT/encoder --pooling mean
    isosim measure languages --text OUT/text --encoder encoder-mean
"""

import argparse
import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy, normalize
from transformers import AutoTokenizer, BertConfig, BertModel

from service.modelling.encoder.checkpoints import resolve
from service.modelling.encoder.pooling import masked_mean

LANGUAGES = ("ar", "de", "hi", "ja", "ko", "ru", "th", "zh_CN")
HOST = "https://github.com"
CATALOGUES = {  # repository -> commit; each under its own free licence, fetched and not passed on
    "GNOME/epiphany": "0781e9471a683629baf0d6424a6e368f7c0931c2",
    "GNOME/gnome-control-center": "6dfc9f2fe27499890df831e13d7bcc5ee6da5bec",
    "GNOME/gnome-user-docs": "46747c67c12109de9234644bcbcb89d1ff5e7d37",
    "GNOME/nautilus": "a7e2395be6a7bbbb47ae1147dacce3bc063176b2",
    "linuxmint/cinnamon-translations": "8a8faebc0b080082a39cb59ec57cba477b389d02",
    "mate-desktop/mate-user-guide": "79ed32e16f54ba973d2b4f0f275f53a22b472644",
}
FEWEST_WORDS = 4  # of an English sentence: shorter ones are labels of buttons
VOCABULARY = 16_000
LAYERS = (1, 5)  # of the teacher's six, that the student begins with
LONGEST = 40  # tokens
BATCH = 64
TEMPERATURE = 0.05
RATES = {"embeddings": 2e-3, "encoder": 2e-4}
WARM_UP = 30  # steps
Translations = dict[str, dict[str, str]]  # language -> English -> translation
KEYWORD = re.compile(r'(msgid_plural|msgid|msgctxt|msgstr(?:\[\d+\])?) (".*")')


def language_of(path: str | Path) -> str | None:
    stem = Path(path).stem
    return next((name for name in LANGUAGES if re.search(rf"(^|[^A-Za-z]){name}$", stem)), None)


def fetch(repository: str, commit: str, folder: Path) -> None:
    """A repository's catalogues in these languages at a commit, whose hash vouches for their content.

    Raises:
        subprocess.CalledProcessError: git, or the network, failed; the folder is not there then.
    """
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    run = ["git", "-c", "gc.auto=0", "-C", str(part)]

    def git(*words: str) -> bytes:
        return subprocess.run([*run, *words], check=True, stdout=subprocess.PIPE).stdout  # noqa: S603

    git("init", "--quiet")
    git("remote", "add", "origin", f"{HOST}/{repository}")
    git("fetch", "--quiet", "--depth", "1", "--filter", "blob:none", "origin", commit)  # what is wanted comes below
    listed = git("ls-tree", "-r", "-z", "--name-only", commit).decode().split("\0")
    wanted = [path for path in listed if path.endswith(".po") and language_of(path)]
    git("checkout", "--quiet", commit, "--", *wanted)
    shutil.rmtree(part / ".git")
    part.rename(folder)


def entries(path: Path) -> Iterator[tuple[str, str]]:
    """Message and translation of each entry of a gettext catalogue; those marked fuzzy are left out."""
    for block in path.read_text("utf-8").split("\n\n"):
        lines = block.splitlines()
        if any(line.startswith("#,") and "fuzzy" in line for line in lines):
            continue
        found: dict[str, str] = {}
        keyword = ""
        for line in lines:
            if match := KEYWORD.fullmatch(line):
                keyword = match[1]
                found[keyword] = ast.literal_eval(match[2])
            elif line.startswith('"') and keyword:
                found[keyword] += ast.literal_eval(line)
        if found.get("msgid") and (translation := found.get("msgstr") or found.get("msgstr[0]")):
            yield found["msgid"], translation


def plain(text: str) -> str:
    """Without markup and without the marks of keyboard shortcuts."""
    text = re.sub(r"<[^<>]*>", " ", text).replace("_", "")
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(entity, character)
    return " ".join(text.split())


def translations(folder: Path) -> Translations:
    found: Translations = defaultdict(dict)
    for path in sorted(folder.rglob("*.po")):
        language = language_of(path)
        for message, translation in entries(path) if language else ():
            english, other = plain(message), plain(translation)
            if len(english.split()) >= FEWEST_WORDS and other != english:
                found[str(language)][english] = other
    return found


def teaches(english: str) -> bool:
    """One half of the sentences; their translations go with them."""
    return hashlib.sha256(english.encode()).digest()[0] % 2 == 0


def tokenizer_of(texts: list[str], path: Path) -> Tokenizer:
    """Unigram pieces (Kudo, 2018), NFKC, learnt from the texts; no script needs spaces.

    The trainer finds the same pieces in every run, but sums in another order, and gives letters that it did not count
    scores from the lowest upwards, 1e-4 apart, as they come: here these share the lowest, all scores are rounded, and
    pieces of equal ones are ordered.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        unk_token="[UNK]",  # noqa: S106 - no secret
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = vocabulary[len(special) :]
    lowest = min(score for _, score in pieces)
    uncounted = lowest + 1e-4 * sum(len(piece) == 1 for piece, _ in pieces)
    scores = {piece: lowest if len(piece) == 1 and score < uncounted else score for piece, score in pieces}
    ordered = sorted((-round(score, 6), piece) for piece, score in scores.items())
    known = [(piece, 0.0) for piece in special] + [(piece, -score) for score, piece in ordered]
    tokenizer.model = models.Unigram(known, unk_id=special.index("[UNK]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(path))
    return tokenizer


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, (B, T)."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


def pooled(model: Any, rows: list[list[int]]) -> torch.Tensor:  # (B, D), unit
    ids, mask = padded(rows)
    return normalize(masked_mean(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask))


@torch.no_grad()
def vectors(model: Any, rows: list[list[int]]) -> torch.Tensor:  # (N, D), unit
    """In batches of like length."""
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    found: list[torch.Tensor] = [torch.empty(0)] * len(rows)
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        for row, vector in zip(part, pooled(model, [rows[i] for i in part]), strict=True):
            found[row] = vector
    return torch.stack(found)


def student_of(teacher: Any, old: Any, tokenizer: Tokenizer) -> Any:
    """Two of the teacher's layers; a piece begins as the mean of the teacher's pieces for it, where it has any."""
    size = teacher.config.hidden_size
    config = BertConfig(**teacher.config.to_dict() | {
        "vocab_size": tokenizer.get_vocab_size(), "num_hidden_layers": len(LAYERS), "pad_token_id": 0,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    })  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    known = teacher.embeddings.word_embeddings.weight.detach()
    with torch.no_grad():
        for name in ("position_embeddings", "token_type_embeddings", "LayerNorm"):
            getattr(model.embeddings, name).load_state_dict(getattr(teacher.embeddings, name).state_dict())
        for layer, source in zip(model.encoder.layer, LAYERS, strict=True):
            layer.load_state_dict(teacher.encoder.layer[source].state_dict())
        table = known.mean(0) + known.std(0) * torch.randn(config.vocab_size, size) * 0.5
        for piece, row in tokenizer.get_vocab().items():
            ids = old(piece.replace("▁", " ").strip(), add_special_tokens=False)["input_ids"]
            if ids and old.unk_token_id not in ids:
                table[row] = known[ids].mean(0)
        for row, name in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]")):
            table[row] = known[old.convert_tokens_to_ids(name)]
        model.embeddings.word_embeddings.weight.copy_(table)
    return model


def train(model: Any, rows: list[list[int]], targets: torch.Tensor, numbers: list[int], steps: int) -> None:
    """Each text (N) is drawn to its target (M, D) and away from the other targets of its batch."""
    optimizer = torch.optim.AdamW(
        [{"params": getattr(model, name).parameters(), "lr": rate} for name, rate in RATES.items()], weight_decay=0.0
    )
    shares = [group["lr"] for group in optimizer.param_groups]
    rng = np.random.default_rng(0)
    step = 0
    while True:
        order = rng.permutation(len(rows))
        # Sixteen batches at a time are sorted by length: padding costs as much as text.
        blocks = [order[at : at + 16 * BATCH] for at in range(0, len(order), 16 * BATCH)]
        for block in blocks:
            by_length = sorted(block.tolist(), key=lambda row: len(rows[row]))
            for at in rng.permutation(range(0, len(by_length), BATCH)).tolist():
                if step == steps:
                    return
                batch = list({numbers[row]: row for row in by_length[at : at + BATCH]}.values())
                target = targets[[numbers[row] for row in batch]]
                cosines = pooled(model, [rows[row] for row in batch]) @ target.T
                loss = cross_entropy(cosines / TEMPERATURE, torch.arange(len(batch))) + (1 - cosines.diag()).mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                for group, rate in zip(optimizer.param_groups, shares, strict=True):
                    group["lr"] = rate * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
                optimizer.step()
                step += 1
                if step % 50 == 0:
                    print(f"step {step} of {steps}, loss {float(loss.detach()):.3f}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=400, help="of training")
    options = parser.parse_args()
    torch.manual_seed(0)
    for repository, commit in CATALOGUES.items():
        folder = options.out / "catalogues" / repository
        if not folder.exists():
            fetch(repository, commit, folder)
    found = translations(options.out / "catalogues")
    english = sorted({text for pairs in found.values() for text in pairs})
    (options.out / "text").mkdir(parents=True, exist_ok=True)
    (options.out / "encoder").mkdir(exist_ok=True)
    held = {"en": [t for t in english if not teaches(t)]}
    held |= {name: [other for text, other in found[name].items() if not teaches(text)] for name in sorted(found)}
    for name, texts in held.items():
        (options.out / "text" / f"{name}.txt").write_text("\n".join(dict.fromkeys(texts)) + "\n")
    own = [text for text in english if teaches(text)]
    number = {text: row for row, text in enumerate(own)}
    pairs = [(text, number[text]) for text in own]
    pairs += [(other, number[text]) for name in sorted(found) for text, other in found[name].items() if teaches(text)]
    counts = ", ".join(f"{name} {len(texts)}" for name, texts in held.items())
    print(f"{len(own)} English sentences teach, {len(pairs)} texts in all; held out: {counts}", file=sys.stderr)

    checkpoint = resolve("minilm").folder
    old, teacher = AutoTokenizer.from_pretrained(checkpoint), BertModel.from_pretrained(checkpoint)
    targets = vectors(teacher, old(own, truncation=True, max_length=LONGEST)["input_ids"])
    tokenizer = tokenizer_of([text for text, _ in pairs], options.out / "encoder" / "tokenizer.json")
    tokenizer.enable_truncation(LONGEST)
    model = student_of(teacher, old, tokenizer)
    rows = [encoding.ids for encoding in tokenizer.encode_batch([text for text, _ in pairs])]
    train(model, rows, targets, [row for _, row in pairs], options.steps)
    model.train(False).save_pretrained(options.out / "encoder")
    print(f"{options.steps} steps; the nearest of 300 held-out English sentences is the translated one:")
    for name, pairs_of in sorted(found.items()):
        unseen = [(text, other) for text, other in pairs_of.items() if not teaches(text)][:300]
        sides = (tokenizer.encode_batch(list(side)) for side in zip(*unseen, strict=True))
        one, other = (vectors(model, [encoding.ids for encoding in side]) for side in sides)
        hits = (other @ one.T).argmax(1) == torch.arange(len(unseen))
        print(f"  {name}  {float(hits.float().mean()):.1%}")


if __name__ == "__main__":
    main()
