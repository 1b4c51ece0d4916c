"""Whether a threshold has its nominal false-match rate on held-out text, in every domain and every language."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from evaluation import figures
from evaluation.calibrated import calibrated, false_match_rate, random_splits, raw_threshold, within
from evaluation.corpora import ALL, HOME, Bench, Row, distinct
from isosim.arrays import Rows, Vectors
from isosim.errors import InvalidInput
from isosim.fitting import reference
from isosim.jobs.labelled_pairs import read_pairs
from isosim.jobs.text_lines import read_lines
from isosim.scoring.advice import Target, advise
from isosim.scoring.calibration import DomainModel
from isosim.scoring.similarity import cosine
from isosim.sts import spearman

TESTED, MOST_TESTED = 2000, 4000  # smallest and largest number of held-out sentences
# Nominal rate -> bounds of the mean rate, and bounds of one split's rate, as multiples of the nominal rate.
BARS = {0.01: ((0.9, 1.1), (0.7, 1.4)), 0.001: ((0.5, 2.0), (0.5, 2.0))}
SPLITS_NEEDED = 0.9  # share of the splits that must lie within the bounds of one split


def one_threshold(
    bench: Bench,
    sources: str = ALL,
    method: str = "auto",
    rate: float = 0.01,
    sentences: int = 2000,
    splits: int = 20,
    figure: str = "",
) -> Iterator[Row]:
    """False matches among held-out pairs, with one raw threshold (set on the first source) and with calibrations."""
    if rate not in BARS:
        raise InvalidInput(f"--rate: one of {', '.join(map(str, BARS))}")
    mean_bar, split_bar = BARS[rate]
    raw, rows = None, []
    for source in sources.split(","):
        texts = bench.sample(source, sentences + MOST_TESTED, least=2 * TESTED)
        x = bench.encoder.vectors(texts)
        raw = raw_threshold(x, rate) if raw is None else raw
        used = min(sentences, len(texts) - TESTED)
        rates, raw_rates, methods = [], [], set()
        for rng, mine, others in random_splits(len(texts), used, splits):
            made = calibrated([texts[row] for row in mine], x[mine], bench.encoder.vectors, rng, method)
            methods.add(made.method)
            rates.append(false_match_rate(made.fitted(x[others]), made.scale.threshold(rate)))
            raw_rates.append(false_match_rate(x[others], raw))
        share = within([one / rate for one in rates], split_bar)
        kept = within([float(np.mean(rates)) / rate], mean_bar) == 1 and share >= SPLITS_NEEDED
        rows.append({
            "source": source, "sentences": used, "method": ", ".join(sorted(methods)),
            "raw, %": 100 * float(np.mean(raw_rates)), "calibrated, %": [100 * one for one in rates],
            "splits within {}–{}×, %".format(*split_bar): 100 * share, "kept": kept,
        })  # fmt: skip
        yield rows[-1]
    if figure:
        figures.thresholds(rows, rate, bench.encoder.artifact.id, Path(figure))


def moved_thresholds(
    bench: Bench, to: str = "minilm-layers3-mean", sources: str = ALL, sentences: int = 2000, splits: int = 5
) -> Iterator[Row]:
    """False matches among held-out pairs, before and after a threshold is converted for the encoder `to`."""
    encoders = bench.encoder, bench.other(to).encoder
    for source in sources.split(","):
        texts = bench.sample(source, sentences + MOST_TESTED, least=2 * TESTED)
        both = [encoder.vectors(texts) for encoder in encoders]
        used = min(sentences, len(texts) - TESTED)
        found: dict[float, list[tuple[float, ...]]] = {rate: [] for rate in BARS}
        for number, (_, mine, others) in enumerate(random_splits(len(texts), used, splits)):
            own = [texts[row] for row in mine]
            old, new = (
                calibrated(own, x[mine], encoder.vectors, np.random.default_rng(number), intervals=True)
                for encoder, x in zip(encoders, both, strict=True)
            )
            unseen = old.fitted(both[0][others]), new.fitted(both[1][others])
            for rate, columns in found.items():
                at = old.scale.threshold(rate)
                converted = new.scale.threshold(float(old.scale.false_match_rate(np.array([at]))[0]))
                before = false_match_rate(unseen[0], at)
                after, reused = (false_match_rate(unseen[1], one) for one in (converted, at))
                columns.append((at, converted, 100 * before, 100 * after, 100 * reused))
        for rate, columns in found.items():
            old_at, new_at, before, after, reused = np.mean(columns, axis=0).tolist()
            low, high = BARS[rate][1]
            yield {
                "source": source, "asked for, %": 100 * rate, "old threshold": old_at, "false matches, %": before,
                "converted": new_at, "then false matches, %": after, "old number reused, %": reused,
                "kept": low <= after / before <= high,
            }  # fmt: skip


SIZES = (50, 200, 500, 1000, 2000, 5000, 20_000)
DRAWS = 10


def text_size(bench: Bench, largest: int = 20_000, figure: str = "") -> Iterator[Row]:
    """Threshold error (Wikipedia) and gain of ranking (STS-B) by the number of sentences of a calibration."""
    rate, embed = 0.01, bench.encoder.vectors
    sizes = [size for size in SIZES if size <= largest]
    texts = bench.sample(HOME, sizes[-1] + MOST_TESTED, least=sizes[-1] + MOST_TESTED)
    x = embed(texts)
    train, test = (read_pairs(bench.data / "sts/stsb" / f"{part}.tsv") for part in ("train", "test"))
    own = list(dict.fromkeys((*train.left, *train.right)))
    own_x, left, right = embed(own), embed(test.left), embed(test.right)
    before = spearman(cosine(left, right), test.gold)
    rows = []
    for size in sizes:
        rates, gains, methods, resolutions = [], [], set(), []
        draws = DRAWS if size < SIZES[-1] else 4
        for number, (rng, mine, others) in enumerate(random_splits(len(texts), size, draws)):
            made = calibrated([texts[row] for row in mine], x[mine], embed, rng, intervals=number == 0)
            methods.add(made.method)
            resolutions.append(made.scale.resolution)
            unseen = made.fitted(x[others[:MOST_TESTED]])
            rates.append(false_match_rate(unseen, made.scale.threshold(rate)))
            if size <= len(own):
                drawn = rng.permutation(len(own))[:size]
                fitted = calibrated([own[row] for row in drawn], own_x[drawn], embed, rng).fitted
                gains.append(spearman(cosine(fitted(left), fitted(right)), test.gold) - before)
        rows.append({
            "sentences": size, "method": ", ".join(sorted(methods)), "false matches at 1 %": [100 * r for r in rates],
            "draws within 0.7–1.4 %": 100 * within([r / rate for r in rates], BARS[rate][1]),
            "resolution": resolutions[0], "gain on STS-B": gains,
        })  # fmt: skip
        yield rows[-1]
    if figure:
        figures.text_size(rows, bench.encoder.artifact.id, Path(figure))


# Smallest number of sentences per language. Half of them make the language's scale; one made from fewer than 400
# sentences is less stable (docs/quality.md, "Little text").
FEWEST = 800


def languages(bench: Bench, text: str, names: str = "", sentences: int = 4000, splits: int = 10) -> Iterator[Row]:
    """False matches in each language: with raw cosines, a common calibration, and the language's own calibration.

    `text` is a folder with a file NAME.txt for each language. The raw threshold is set on the first language. The
    common calibration has equally many sentences of each.
    """
    rate, embed = 0.01, bench.encoder.vectors
    every = sorted((file.stem for file in Path(text).glob("*.txt")), key=lambda name: (name != "en", name))
    chosen = names.split(",") if names else every
    if len(chosen) < 2:
        raise InvalidInput(f"{text}: at least two languages are needed (files NAME.txt)")
    texts = {name: distinct(read_lines(Path(text) / f"{name}.txt"), name, sentences, FEWEST) for name in chosen}
    x = {name: embed(own) for name, own in texts.items()}
    least = min(map(len, texts.values())) // 2
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in [*chosen, "all, mixed"]}
    alone: dict[str, list[float]] = {name: [] for name in found}  # stays empty for the mix
    methods: dict[str, set[str]] = {name: set() for name in found}
    for split in range(splits):
        rng = np.random.default_rng(split)
        halves = {name: np.split(rng.permutation(len(own)), [len(own) // 2]) for name, own in texts.items()}
        raw = raw_threshold(x[chosen[0]][halves[chosen[0]][0]], rate, split)
        mixed = calibrated(
            [texts[name][row] for name, (mine, _) in halves.items() for row in mine[:least]],
            np.concatenate([x[name][mine[:least]] for name, (mine, _) in halves.items()]),
            embed,
            np.random.default_rng(split),
        )
        common = mixed.scale.threshold(rate)
        for name, (mine, others) in halves.items():
            made = calibrated([texts[name][row] for row in mine], x[name][mine], embed, np.random.default_rng(split))
            unseen = x[name][others]
            methods[name].add(made.method)
            alone[name].append(100 * false_match_rate(made.fitted(unseen), made.scale.threshold(rate)))
            found[name].append((false_match_rate(unseen, raw), false_match_rate(mixed.fitted(unseen), common)))
        unseen = np.concatenate([x[name][others[:least]] for name, (_, others) in halves.items()])
        methods["all, mixed"].add(mixed.method)
        found["all, mixed"].append((false_match_rate(unseen, raw), false_match_rate(mixed.fitted(unseen), common)))
    for name, columns in found.items():
        raw_rates, common_rates = (100 * np.array(columns)).T.tolist()
        own_rates = alone[name]
        yield {
            "language": name, "sentences": len(texts[name]) // 2 if name in texts else least * len(texts),
            "raw, %": raw_rates, "one calibration for all, %": common_rates, "one a language, %": own_rates,
            "method": ", ".join(sorted(methods[name])),
            "kept": not own_rates or within([float(np.mean(own_rates)) / 100 / rate], BARS[rate][0]) == 1,
        }  # fmt: skip


SHARES = (0.0, 0.05, 0.1, 0.2)  # shares of mails among the texts
RATES = (0.01, 0.003, 0.001)
MINE, OTHERS = 744, 2000  # number of sentences of a reference, and of held-out sentences
NOTICE = 30  # number of sentences in the notice; it is longer than the 256 tokens that the default encoder reads
MAILS = 32  # number of mails to embed; other mails reuse these vectors, because all mails have the same vector
FACTOR = 1.25  # promised maximum of counted rate / nominal rate, and of nominal rate / counted rate


def repeated_texts(bench: Bench, draws: int = 5) -> Iterator[Row]:
    """False matches if a share of the texts begins with the same notice, so that these have the same vector (identity).

    A threshold may be refused, if none reaches the rate.
    """
    texts = bench.sample(HOME, MINE + OTHERS + NOTICE, least=MINE + OTHERS + NOTICE)
    notice, sentences = " ".join(texts[:NOTICE]), texts[NOTICE:]
    plain = bench.encoder.vectors(sentences)
    mails = np.resize(bench.encoder.vectors([f"{notice} {text}" for text in sentences[:MAILS]]), plain.shape)

    def mixed(rows: Rows, share: float) -> Vectors:
        count = round(share * len(rows))
        return np.concatenate([mails[rows[:count]], plain[rows[count:]]])

    for share in SHARES:
        scales = []
        for rng, mine, others in random_splits(len(plain), MINE, draws):
            own = mixed(mine, share)
            pairs = reference.sample_pairs([(own, np.arange(len(own)))], rng)
            scales.append((reference.build(pairs, rng), own, mixed(others, share)))
        reachable = [scale.smallest_rate for scale, _, _ in scales]
        for rate in RATES:
            counted, unseen = [], []
            for scale, own, other in scales:
                try:
                    threshold = advise(DomainModel(scale), "mails", Target(fmr=rate)).similarity
                except InvalidInput:
                    continue
                counted.append(100 * false_match_rate(own, threshold))
                unseen.append(100 * false_match_rate(other, threshold))
            refused = draws - len(counted)
            near = all(1 / FACTOR <= one / (100 * rate) <= FACTOR for one in counted)
            yield {
                "repeated, %": 100 * share, "asked for, %": 100 * rate, "refused": refused,
                "smallest reachable, %": 100 * float(np.mean(reachable)), "counted, %": counted,
                "other texts, %": unseen,
                "kept": near and (not refused or min(reachable) > rate / FACTOR),
            }  # fmt: skip
