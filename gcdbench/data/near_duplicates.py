"""Images that are in a dataset twice: the same pixels, resized, recompressed or mirrored.

Equal pixels are found by a hash. The others are neighbours by a small descriptor, found by faiss,
that also agree when they are compared in more detail: a neighbour alone is no duplicate.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from gcdbench.data.corrupted import CorruptedImages
from gcdbench.data.images import Images, JoinedImages
from gcdbench.data.problem import Problem, clean_id

COARSE, COLOUR, FINE = 16, 4, 32  # sides of the squares that are compared
CANDIDATE = 0.95  # cosine of descriptors from which two images are compared in detail
ALIKE = 0.99  # correlation of their brightness in detail
APART = 8.0  # mean difference in grey levels, at most
FLAT = 3.0  # deviation of the brightness below which an image shows nothing to compare
NEIGHBOURS = 8
LARGE = 50_000  # images above which only the nearest cells of an index are searched


@dataclass(frozen=True)
class Description:
    """What is compared of an image first."""

    digest: str  # of its pixels
    vector: np.ndarray  # of unit length; zeros for an image that shows nothing
    mirrored: np.ndarray


@dataclass(frozen=True)
class Pair:
    """Two images that are one."""

    first: int
    second: int
    kind: str  # exact, near or mirrored


def original(images: Images, row: int) -> tuple[Images, int]:
    """Return the list and row of the image itself, of a corrupted one the clean image."""
    if isinstance(images, JoinedImages):
        return original(*images.find(row))
    if isinstance(images, CorruptedImages):
        return original(images.clean, row % len(images.clean))
    return images, row


def describe(image: Image.Image) -> Description:
    """Return what is compared of an image first."""
    digest = hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()
    small = np.asarray(image.resize((COARSE, COARSE), Image.Resampling.BOX), dtype=np.float32)
    return Description(digest, _vector(small), _vector(small[:, ::-1]))


def _vector(pixels: np.ndarray) -> np.ndarray:
    brightness = pixels.mean(2)
    if brightness.std() < FLAT:
        return np.zeros(COARSE**2 + 2 * COLOUR**2, dtype=np.float32)
    colours = (pixels[..., :2] - brightness[..., None]).reshape(
        COLOUR, COARSE // COLOUR, COLOUR, COARSE // COLOUR, 2
    )
    parts = [(brightness - brightness.mean()).ravel(), colours.mean((1, 3)).ravel()]
    vector = np.concatenate(parts)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def exact_pairs(described: Sequence[Description]) -> list[Pair]:
    """Return the pairs of images with equal pixels; each copy is paired with the first one."""
    first: dict[str, int] = {}
    pairs = []
    for row, one in enumerate(described):
        before = first.setdefault(one.digest, row)
        if before != row:
            pairs.append(Pair(before, row, "exact"))
    return pairs


def candidates(described: Sequence[Description]) -> list[Pair]:
    """Return the pairs of neighbours by the descriptor that are worth a closer look."""
    logging.getLogger("faiss.loader").setLevel(logging.WARNING)  # it reports every attempt
    import faiss

    copies = {pair.second for pair in exact_pairs(described)}
    rows = [r for r, one in enumerate(described) if r not in copies and one.vector.any()]
    if len(rows) < 2:
        return []
    vectors = np.stack([described[row].vector for row in rows])
    index = _index(vectors, faiss)
    pairs: dict[tuple[int, int], Pair] = {}
    mirrored = np.stack([described[row].mirrored for row in rows])
    for kind, queries in (("near", vectors), ("mirrored", mirrored)):
        likeness, found = index.search(queries, min(NEIGHBOURS, len(rows)))
        for place, neighbour in zip(*np.nonzero(likeness >= CANDIDATE), strict=True):
            one, other = sorted((rows[place], rows[found[place, neighbour]]))
            if one != other and found[place, neighbour] >= 0:
                pairs.setdefault((one, other), Pair(one, other, kind))
    return [pairs[key] for key in sorted(pairs)]


def _index(vectors: np.ndarray, faiss: Any) -> Any:
    size = vectors.shape[1]
    if len(vectors) <= LARGE:
        index = faiss.IndexFlatIP(size)
    else:
        cells = int(len(vectors) ** 0.5)
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(size), size, cells, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = 16
        index.train(vectors[:: max(1, len(vectors) // (64 * cells))])
    index.add(vectors)
    return index


def is_confirmed(first: Image.Image, second: Image.Image, kind: str) -> bool:
    """Compare two images in detail."""
    if kind == "mirrored":
        second = ImageOps.mirror(second)
    left, right = (
        np.asarray(i.resize((FINE, FINE), Image.Resampling.BICUBIC), dtype=np.float32)
        for i in (first, second)
    )
    if np.abs(left - right).mean() > APART:
        return False
    one, other = (x.mean(2).ravel() - x.mean() for x in (left, right))
    return bool(one @ other >= ALIKE * np.linalg.norm(one) * np.linalg.norm(other))


def groups(pairs: Iterable[Pair]) -> list[list[int]]:
    """Join pairs that share an image; return the groups in the order of their first images."""
    parent: dict[int, int] = {}

    def root(row: int) -> int:
        while parent.setdefault(row, row) != row:
            parent[row] = row = parent[parent[row]]
        return row

    for pair in pairs:
        one, other = sorted((root(pair.first), root(pair.second)))
        parent[other] = one
    members: dict[int, list[int]] = {}
    for row in sorted(parent):
        members.setdefault(root(row), []).append(row)
    return [members[key] for key in sorted(members)]


@dataclass(frozen=True)
class Effect:
    """What duplicates do to a split."""

    groups: int
    images: int  # in all groups
    contradictory: int  # groups with more than one class
    labelled_twice: int  # groups with several labelled images
    labelled_and_unlabelled: int  # groups that show a label of an unlabelled image
    labelled_and_scored: int
    across_domains: int  # groups in several evaluation sets
    excluded: list[str]  # images that a suite leaves out to have each once


def effect(problem: Problem, found: list[list[int]], members: Sequence[list[int]]) -> Effect:
    """Say what groups of images do to a split.

    ``members`` has the rows of the problem that show each image: a clean one or its variants. Of a
    group, a labelled image is kept, else an unlabelled one, else the first; of a group with several
    classes nothing is kept, for no label can be trusted.
    """
    labelled, unlabelled = set(problem.labelled.tolist()), set(problem.unlabelled.tolist())
    sets = {name: set(one.rows.tolist()) for name, one in problem.sets.items()}
    scored: set[int] = set().union(*sets.values())
    counts = dict.fromkeys(
        (*("contradictory", "labelled_twice", "labelled_and_unlabelled"), "labelled_and_scored"), 0
    )
    across, excluded = 0, []
    for group in found:
        rows = [members[image] for image in group]
        classes = {int(problem.labels[row]) for some in rows for row in some}
        with_label = [image for image in group if labelled & set(members[image])]
        without = [image for image in group if image not in with_label]
        counts["contradictory"] += len(classes) > 1
        counts["labelled_twice"] += len(with_label) > 1
        others = {row for image in without for row in members[image]}
        counts["labelled_and_unlabelled"] += bool(with_label) and bool(others & unlabelled)
        counts["labelled_and_scored"] += bool(with_label) and bool(others & scored)
        homes = [
            {name.partition("/")[0] for name, inside in sets.items() if inside & set(some)}
            for some in rows
        ]
        across += len(set().union(*homes)) > 1 and any(home != homes[0] for home in homes)
        trained = [image for image in group if unlabelled & set(members[image])]
        kept = [*with_label, *trained, *group][:1] if len(classes) == 1 else []
        gone = [members[image][0] for image in group if image not in kept]
        excluded += [clean_id(problem.images.ids[row]) for row in gone]
    return Effect(
        groups=len(found),
        images=sum(map(len, found)),
        across_domains=across,
        excluded=sorted(excluded),
        **counts,
    )
