"""``gcdbench data verify --near-duplicates``: images that are in a dataset twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from gcdbench.cli.arguments import counted
from gcdbench.cli.data._common import in_parallel, say
from gcdbench.data import near_duplicates
from gcdbench.data.images import Images, Unreadable
from gcdbench.data.near_duplicates import Description, Pair, original
from gcdbench.data.problem import Dataset, Problem
from gcdbench.errors import UserError

CHUNK = 64  # images that a process describes before it reports
SHOWN = 20  # groups that are printed
_images: Images  # of this process


def report_duplicates(
    name: str, source: Dataset, folder: Path | None, workers: int | None = None
) -> None:
    """Print the duplicates of a dataset and what they do to its split; write what to leave out."""
    problem = _clean_problem(name, source)
    members = _distinct(problem)
    pairs, unreadable = find(problem.images, members, name, workers)
    found = near_duplicates.groups(pairs)
    effect = near_duplicates.effect(problem, found, members)
    kinds = {kind: sum(p.kind == kind for p in pairs) for kind in ("exact", "near", "mirrored")}
    say(
        f"{name}: {counted(len(members), 'image')}, {counted(effect.groups, 'group')} of "
        f"duplicates with {counted(effect.images, 'image')} (pairs: "
        + ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
        + ")"
    )
    for group in found[:SHOWN]:
        say("duplicates: " + "  ".join(problem.images.place(members[i][0]) for i in group))
    if len(found) > SHOWN:
        say(f"and {len(found) - SHOWN:,} more groups")
    if found:
        say(
            f"{name}: groups with several classes {effect.contradictory:,}, labelled twice "
            f"{effect.labelled_twice:,}, labelled and unlabelled "
            f"{effect.labelled_and_unlabelled:,}, labelled and scored "
            f"{effect.labelled_and_scored:,}, in several evaluation sets {effect.across_domains:,}"
        )
        _say_split(problem, effect.excluded)
    if unreadable:
        say(f"{name}: {counted(unreadable, 'image')} could not be read or compared")
    if folder is not None:
        _write(folder / f"{name}.txt", name, effect.excluded)


def find(
    images: Images, members: Sequence[list[int]], label: str, workers: int | None
) -> tuple[list[Pair], int]:
    """Return the pairs among the images, by their places in ``members``, and how many failed."""
    rows = [rows[0] for rows in members]
    described = _described(images, rows, label, workers)
    there = [place for place in range(len(rows)) if described[place] is not None]
    known = [one for one in described if one is not None]
    pairs = near_duplicates.exact_pairs(known)
    for pair in near_duplicates.candidates(known):
        first, second = (_open(images, rows[there[i]]) for i in (pair.first, pair.second))
        if near_duplicates.is_confirmed(first, second, pair.kind):
            pairs.append(pair)
    moved = [Pair(there[p.first], there[p.second], p.kind) for p in pairs]
    return moved, len(rows) - len(known)


def _clean_problem(name: str, source: Dataset) -> Problem:
    """Build the problem over clean images: variants of one image are no duplicates."""
    if hasattr(source.config, "corrupted"):
        config = dataclasses.replace(source.config, corrupted="computed")
        source = type(source)(config, source.root)
    return source.problem(name)


def _distinct(problem: Problem) -> list[list[int]]:
    """Return the rows of each image: of a clean one itself, of a corrupted one all variants."""
    members: dict[tuple[int, int], list[int]] = {}
    for row in range(len(problem.images)):
        images, inside = original(problem.images, row)
        members.setdefault((id(images), inside), []).append(row)
    return list(members.values())


def _described(
    images: Images, rows: list[int], label: str, workers: int | None
) -> list[Description | None]:
    places = range(0, len(rows), CHUNK)
    chunks = [(start, rows[start : start + CHUNK]) for start in places]
    found: dict[int, list[Description | None]] = {}
    answers = in_parallel(_describe, chunks, workers=workers, prepare=_prepare, given=(images,))
    with tqdm(total=len(rows), desc=label, unit="image", disable=None, leave=False) as bar:
        for start, some in answers:
            found[start] = some
            bar.update(len(some))
    return [one for start in places for one in found[start]]


def _prepare(images: Images) -> None:
    global _images
    _images = images


def _describe(chunk: tuple[int, list[int]]) -> tuple[int, list[Description | None]]:
    start, rows = chunk
    found: list[Description | None] = []
    for row in rows:
        try:
            found.append(near_duplicates.describe(_open(_images, row)))
        except Unreadable:
            found.append(None)
    return start, found


def _open(images: Images, row: int):  # type: ignore[no-untyped-def]  # an image of Pillow
    clean, inside = original(images, row)
    return clean.open(inside)


def _say_split(problem: Problem, excluded: list[str]) -> None:
    left = problem.without(excluded, "near duplicates")

    def change(before: int, after: int) -> str:
        return f"{before:,} -> {after:,}"

    scored = [sum(len(one.rows) for one in p.sets.values()) for p in (problem, left)]
    say(
        f"{problem.name}: leaving out {counted(len(excluded), 'image')} changes labelled "
        f"{change(len(problem.labelled), len(left.labelled))}, unlabelled "
        f"{change(len(problem.unlabelled), len(left.unlabelled))}, scored {change(*scored)}"
    )


def _write(path: Path, name: str, excluded: list[str]) -> None:
    head = [
        f"# Images of {name} that are there twice: one of each group is kept, and none of a group",
        "# with several classes. A suite leaves them out with 'exclude: FILE' at its dataset.",
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*head, *excluded]) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    say(f"{path}: {counted(len(excluded), 'image')} to leave out")
