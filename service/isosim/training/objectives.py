"""Training objectives of an encoder: how each reads its examples, which loss it uses, and which paper it comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isosim.training.data import Examples, read_classes, read_graded, read_sentences, read_triplets

TEMPERATURE = 0.05  # source: Gao et al., 2021, section 3 and appendix D
MARGIN = 1.0  # Euclidean distance (source: Reimers & Gurevych, 2019, section 3)


@dataclass(frozen=True)
class Knobs:
    """Parameters of all losses. Each loss uses only some of them."""

    temperature: float = TEMPERATURE
    margin: float = MARGIN
    # The grades that become cosine 0 and cosine 1; None: the lowest and the highest grade of the file.
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True)
class Objective:
    """A training objective; `loss` takes the SentenceTransformer, the examples and the knobs."""

    name: str
    expects: str
    source: str
    read: Callable[[Path, Knobs], Examples]
    loss: Callable[[Any, Examples, Knobs], Any]
    # True: the other examples of a batch serve as negatives. No batch may contain a sentence twice.
    contrastive: bool = False
    needs_dropout: bool = False


def in_batch_negatives(model: Any, _: Examples, knobs: Knobs) -> Any:
    """InfoNCE over the cosines of a batch. If there are hard negatives, they are negatives for all anchors."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss  # noqa: PLC0415

    return MultipleNegativesRankingLoss(model, scale=1 / knobs.temperature)


def softmax(model: Any, examples: Examples, _: Knobs) -> Any:
    """A softmax classifier on the vectors u and v of a pair, concatenated with |u - v|."""
    from sentence_transformers.sentence_transformer.losses import SoftmaxLoss  # noqa: PLC0415

    return SoftmaxLoss(model, model.get_embedding_dimension(), num_labels=examples.classes)


def squared_error(model: Any, _: Examples, __: Knobs) -> Any:
    """Mean squared error between cosine and grade."""
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss  # noqa: PLC0415

    return CosineSimilarityLoss(model)


def triplet(model: Any, _: Examples, knobs: Knobs) -> Any:
    """max(‖a - p‖ - ‖a - n‖ + margin, 0) for the vectors of anchor, positive and negative."""
    from sentence_transformers.sentence_transformer.losses import TripletLoss  # noqa: PLC0415

    return TripletLoss(model, triplet_margin=knobs.margin)


SIMCSE = "Gao, Yao & Chen, SimCSE, EMNLP 2021"
SBERT = "Reimers & Gurevych, Sentence-BERT, EMNLP 2019"

OBJECTIVES = {
    one.name: one
    for one in (
        Objective(
            "simcse",
            "sentences, one a line",
            f"{SIMCSE}, section 3 (unsupervised)",
            lambda path, _: read_sentences(path),
            in_batch_negatives,
            contrastive=True,
            needs_dropout=True,
        ),
        Objective(
            "simcse-supervised",
            "anchor, positive, negative",
            f"{SIMCSE}, section 4 (supervised, hard negatives)",
            lambda path, _: read_triplets(path),
            in_batch_negatives,
            contrastive=True,
        ),
        Objective(
            "classification",
            "label, premise, hypothesis",
            f"{SBERT}, section 3 (classification objective)",
            lambda path, _: read_classes(path),
            softmax,
        ),
        Objective(
            "regression",
            "score, sentence1, sentence2",
            f"{SBERT}, section 3 (regression objective)",
            lambda path, knobs: read_graded(path, knobs.bounds),
            squared_error,
        ),
        Objective(
            "triplet",
            "anchor, positive, negative",
            f"{SBERT}, section 3 (triplet objective)",
            lambda path, _: read_triplets(path),
            triplet,
        ),
    )
}
