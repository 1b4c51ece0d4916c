"""Checks a version that comes from elsewhere: its arrays are bounded before they are loaded, then it scores vectors.

Domain models do not check every array before they use it, and numpy fills memory as a header asks it to.
"""

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from isosim.domains.domain import Version
from isosim.domains.store import PART, REPORT, WEIGHTS, read_parts
from isosim.encoders.onnx_engine import OnnxCalibrator
from isosim.encoders.store import EncoderArtifact
from isosim.errors import CorruptArtifact, InvalidInput, IsosimError
from isosim.scoring.calibration import DomainModel
from isosim.scoring.out_of_domain import LONGEST, DomainTest, level_energies
from isosim.store.artifacts import parsed

# Largest numbers of points of a curve, levels of an interval, and texts' lengths. isosim itself writes at most 1,000,
# 8 and 12.
POINTS, LEVELS, LENGTHS = 4096, 64, 64
MOST_REPORT = 1 << 18  # bytes; isosim writes at most 20 kB
ROOM = 1 << 16  # bytes of a file besides its arrays
ROWS = 16  # random vectors that a version must score

Shapes = dict[str, tuple[int, ...]]


def largest_shapes(dim: int) -> dict[str, Shapes]:
    """The largest shape of each array of each part of a domain model, for vectors of `dim` dimensions."""
    points, levels = (POINTS,), (LEVELS,)
    reference: Shapes = dict.fromkeys(("similarities", "logits", "tied", "tied_rates"), points)
    reference |= dict.fromkeys(("levels", "low", "high", "relative_error"), levels)
    reference |= dict.fromkeys(("shape", "scale", "tail_error", "sentences", "pairs"), ())
    columns = ("precisions", "thresholds", "interval_low", "interval_high", "recalls", "recall_low", "recall_high")
    probability: Shapes = dict.fromkeys((*columns, "precision_low", "precision_high", "knots", "logits"), points)
    probability |= dict.fromkeys(("clip", "low", "high", "graded", "pairs"), ())
    pair_map: Shapes = {"centre": levels, "moves": levels, **probability}
    table: Shapes = {"rates": points, "galleries": levels, "queries": (), "entries": ()}
    table |= dict.fromkeys(("hits", "errors"), (LEVELS, POINTS))
    test: Shapes = {
        "mean": (dim,), "whitening": (dim, dim), "edges": levels, "probe": (2 * dim,), "centres": (LENGTHS,),
        "location": (LENGTHS, 2 * LEVELS), "scale": (LENGTHS, 2 * LEVELS), "bands_root": (2 * LEVELS, 2 * LEVELS),
        "length_shift": (2, LENGTHS),
    }  # fmt: skip
    test |= dict.fromkeys(("distance_curve", "bands_curve", "probe_curve", "final_curve"), (2, POINTS))
    return {
        "reference": reference, "raw_reference": reference, "probability": probability, "domain_test": test,
        "pair_map": pair_map,
        "false_hits": table, "raw_false_hits": table,
    }  # fmt: skip


class Inspector:
    """Checks versions for one encoder."""

    def __init__(self, artifact: EncoderArtifact) -> None:
        self.dim = artifact.spec.dim
        # Longer texts are cut. Vectors that users bring have no length.
        self.longest = artifact.spec.max_length or LONGEST
        self.calibrator = OnnxCalibrator(artifact.calibrator)
        self.shapes = largest_shapes(self.dim)

    def most(self, file: str) -> int:
        """The largest size (bytes) of a version's file."""
        if file == REPORT:
            return MOST_REPORT
        if file == WEIGHTS:
            return ROOM + sum(8 * int(np.prod(shape)) for shape, _ in self.calibrator.shapes.values())
        return ROOM + sum(8 * int(np.prod(shape)) for shape in self.shapes[file.removesuffix(PART)].values())

    def check(self, version: Version, folder: Path, called: str) -> None:
        """Checks that a version can be loaded from the files in `folder`, and can score.

        Raises:
            InvalidInput: it cannot; the message names the version as `called`.
        """
        try:
            for kind in DomainModel.KINDS:
                if kind + PART in version.files:
                    check_arrays(folder / (kind + PART), self.shapes[kind])
            parsed((folder / REPORT).read_bytes(), REPORT)
            with np.errstate(all="ignore"):
                weights, model = read_parts(folder, version.files, called)
                if model.domain_test is not None:
                    self._check_lengths(model.domain_test)
                transform = None if weights is None else self.calibrator.bind(weights)
                pooled = np.random.default_rng(0).standard_normal((ROWS, self.dim)).astype(np.float32)
                pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
                check_scores(model, version.levels, pooled, pooled if transform is None else transform(pooled))
        except (ValueError, TypeError, IndexError, ArithmeticError, IsosimError) as error:
            # An array with a wrong shape or value can raise any of these errors.
            raise InvalidInput(f"{called} cannot be used: {str(error).replace(str(folder), called)}") from None

    def _check_lengths(self, test: DomainTest) -> None:
        """Refuses a test for longer texts than the encoder reads: its tables have a row for each length."""
        for centres in (test.standardization.centres, test.combination.length_shift[0]):
            if centres[-1] > np.log(self.longest) + 1e-9:
                raise CorruptArtifact(f"its out-of-domain test has texts of more than {self.longest:,} tokens")


def check_arrays(path: Path, shapes: Shapes) -> None:
    """Raises CorruptArtifact unless a .npz has only uncompressed arrays of numbers with these names, each not larger
    than its shape and as long as its header says."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PK\3\4":  # numpy looks at the beginning, zipfile at the end
                raise CorruptArtifact(f"{path.name} is not a .npz")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names = [entry.filename.removesuffix(".npy") for entry in entries]
            if len(set(names)) < len(names) or not shapes.keys() >= set(names):
                raise CorruptArtifact(f"{path.name} has an array that does not belong there")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise CorruptArtifact(f"{path.name} is compressed")
            if sum(entry.file_size for entry in entries) > path.stat().st_size:
                raise CorruptArtifact(f"{path.name}: its arrays are larger than the file")
            for name, entry in zip(names, entries, strict=True):
                with archive.open(entry) as content:
                    read_header = np.lib.format.read_array_header_1_0
                    if np.lib.format.read_magic(content) != (1, 0):
                        read_header = np.lib.format.read_array_header_2_0
                    shape, _, dtype = read_header(content)
                    length = int(np.prod(shape, dtype=object)) * dtype.itemsize
                    if dtype.kind not in "fiub" or dtype.itemsize > 8 or content.tell() + length != entry.file_size:
                        raise CorruptArtifact(f"{path.name}: {name[:80]!r} is not an array of numbers")
                    most = shapes[name]
                    if len(shape) != len(most) or any(mine > limit for mine, limit in zip(shape, most, strict=True)):
                        raise CorruptArtifact(f"{path.name}: {name} has the shape {shape}; at most {most} is allowed")
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError, RuntimeError, MemoryError) as error:
        if isinstance(error, IsosimError):
            raise
        raise CorruptArtifact(f"{path.name} cannot be read: {error}") from None


def check_scores(
    model: DomainModel, levels: tuple[int, ...], pooled: npt.NDArray[np.float32], latents: npt.NDArray[np.float32]
) -> None:
    """Scores vectors (N, D) as a server would, and checks the results.

    Raises:
        CorruptArtifact: the results are not valid scores.
        ValueError, TypeError, IndexError, ArithmeticError: the arrays do not fit together.
    """
    unit = latents / np.maximum(np.linalg.norm(latents, axis=1, keepdims=True), 1e-12)
    found: list[tuple[str, npt.NDArray[np.floating]]] = [("latents", latents)]
    scales = [np.empty(0)]
    if model.reference is not None:
        scales.append(model.reference.false_match_rate(np.vecdot(unit, unit[::-1])))
    for reference in filter(None, (model.reference, model.raw_reference)):
        rates = reference.false_match_rate(np.linspace(-1, 1, 401))
        scales.append(rates)
        thresholds = [reference.threshold(rate) for rate in (0.5, 0.01, 1e-6)]
        found.append(("thresholds", np.array([*thresholds, *reference.interval(0.01), reference.resolution])))
        if (np.diff(rates) > 1e-9).any() or rates.min() < 0 or rates.max() > 1:
            raise CorruptArtifact("the false-match rates of its reference do not fall as the similarity rises")
        reference.extrapolated(rates)
        reference.reachable(0.01)
    scale = np.concatenate(scales)
    found.append(("false-match rates", scale))
    if model.probability is not None:
        found.append(("probabilities", model.probability.probability(scale)))
    for table in filter(None, (model.false_hits, model.raw_false_hits)):
        found += [("shares of false hits", table.share(scale, gallery)) for gallery in (1, 1000, 10**9)]
    energies = level_energies(latents, levels) if levels else None
    if model.domain_test is not None:
        found.append(("p-values", model.domain_test.judge(pooled, np.arange(1, len(pooled) + 1), energies)))
    for name, numbers in found:
        if not np.isfinite(numbers).all():
            raise CorruptArtifact(f"its {name} are not finite numbers")
