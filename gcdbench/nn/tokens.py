"""States of images inside a backbone, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Patches:
    """State of images after the patch embedding, before CLS token and positions."""

    x: Tensor  # (n, p, d)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor) -> Patches:
        return Patches(self.x[rows])

    def to(self, device: torch.device) -> Patches:
        """Move to a device."""
        return Patches(self.x.to(device, non_blocking=True))


@dataclass(frozen=True)
class Trace:
    """What a recording holds of images that have passed the trunk."""

    patches: Tensor  # (n, p, d)
    maps: Tensor  # (n, blocks of the trunk, heads, p) CLS attention

    def __getitem__(self, rows: Tensor) -> Trace:
        return Trace(self.patches[rows], self.maps[rows])

    def to(self, device: torch.device) -> Trace:
        """Move to a device."""
        parts = (part.to(device, non_blocking=True) for part in (self.patches, self.maps))
        return Trace(*parts)


@dataclass(frozen=True)
class Tokens:
    """State of images after the frozen trunk."""

    x: Tensor  # (n, prefix + p, d)
    taps: dict[int, Tensor] = field(default_factory=dict)  # block -> CLS (n, d), normalised
    trace: Trace | None = None  # if it may be needed

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor) -> Tokens:
        trace = None if self.trace is None else self.trace[rows]
        return Tokens(self.x[rows], {b: cls[rows] for b, cls in self.taps.items()}, trace)

    def to(self, device: torch.device) -> Tokens:
        """Move to a device."""
        taps = {block: cls.to(device, non_blocking=True) for block, cls in self.taps.items()}
        trace = None if self.trace is None else self.trace.to(device)
        return Tokens(self.x.to(device, non_blocking=True), taps, trace)


@dataclass(frozen=True)
class Share:
    """Images of which this process has those rows that it encodes, and other processes the rest."""

    mine: Tensor | Patches | Tokens  # as many rows in every process
    places: Tensor  # (n,) of the images among the rows of all processes, in the order of ranks
    fetch: Callable[[], Tensor | Patches | Tokens]  # returns all images; all processes call it

    def __len__(self) -> int:
        return len(self.places)

    @property
    def x(self) -> Tensor:
        """What this process has of the images."""
        return self.mine if isinstance(self.mine, Tensor) else self.mine.x

    def __getitem__(self, rows: Tensor) -> Tensor | Patches | Tokens:
        return self.fetch()[rows]

    def to(self, device: torch.device) -> Share:
        """Move to a device."""
        places = self.places.to(device, non_blocking=True)
        return Share(_on(device, self.mine), places, lambda: _on(device, self.fetch()))


def _on(device: torch.device, images: Tensor | Patches | Tokens) -> Tensor | Patches | Tokens:
    if not isinstance(images, Tensor):
        return images.to(device)
    return pixels_on(device, images)


def pixels_on(device: torch.device, images: Tensor) -> Tensor:
    """Move images to a device, turning stored bytes into numbers between 0 and 1."""
    images = images.to(device, non_blocking=True)
    return images.float().div_(255) if images.dtype == torch.uint8 else images


State = Tensor | Patches | Tokens | Share  # images (n, 3, H, W), or what was precomputed of them


def size_of(view: State) -> tuple[Any, ...]:
    """Return what views must have in common to be encoded together."""
    return type(view), (view if isinstance(view, Tensor) else view.x).shape[1:]


def stack(views: Sequence[State]) -> State:
    """Return the rows of all views, which have one size."""
    first = views[0]
    if len(views) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(views))  # type: ignore[arg-type]
    if isinstance(first, Patches):
        return Patches(torch.cat([one.x for one in views]))  # type: ignore[union-attr]
    taps = {b: torch.cat([one.taps[b] for one in views]) for b in first.taps}  # type: ignore[union-attr]
    traces = [one.trace for one in views if isinstance(one, Tokens) and one.trace is not None]
    trace = None
    if len(traces) == len(views):
        trace = Trace(*(torch.cat([getattr(t, k) for t in traces]) for k in ("patches", "maps")))
    return Tokens(torch.cat([one.x for one in views]), taps, trace)  # type: ignore[union-attr]


@dataclass(frozen=True)
class Encoded:
    """Output of the backbone: what the heads get of an image."""

    cls: Tensor  # (n, d) CLS token after the last block and the final norm
    taps: dict[int, Tensor] = field(default_factory=dict)  # block -> CLS (n, d), same norm
    patches: Tensor | None = None  # (n, p, d), same norm, if the method requires patches
    added: Tensor | None = None  # (n, m, d), same norm: the tokens that an adapter has added


def first_of(encoded: Encoded, number: int) -> Encoded:
    """Return the first rows of an output."""
    patches, added = (
        None if part is None else part[:number] for part in (encoded.patches, encoded.added)
    )
    taps = {block: cls[:number] for block, cls in encoded.taps.items()}
    return Encoded(encoded.cls[:number], taps, patches, added)


def join(parts: Sequence[Encoded]) -> Encoded:
    """Return the rows of all parts; patches only if all parts have as many."""
    if len(parts) == 1:
        return parts[0]
    taps = {block: torch.cat([e.taps[block] for e in parts]) for block in parts[0].taps}
    patches = [e.patches for e in parts if e.patches is not None]
    whole = len({p.shape[1:] for p in patches}) == 1 and len(patches) == len(parts)
    added = [e.added for e in parts if e.added is not None]
    return Encoded(
        torch.cat([e.cls for e in parts]),
        taps,
        torch.cat(patches) if whole else None,
        torch.cat(added) if added else None,
    )


@dataclass
class Recording:
    """Patch embedding and CLS attention of the latest images."""

    found: Tensor = field(default_factory=lambda: torch.empty(0))  # (n, p, d), before the hooks
    kept: Tensor | None = None  # (n, blocks, heads, p) maps of the blocks that were not run
    scores: list[Tensor] = field(default_factory=list)  # of the others, before the softmax
    gradient: bool = False  # whether the maps of trained blocks pass one
    added: Tensor | None = None  # (m, d) output for the rows that were added to the images
    gather: Callable[[Tensor], Tensor] | None = None  # to get the patches of other processes

    def begin(self, patches: Tensor, kept: Tensor | None = None) -> None:
        """Forget earlier images."""
        self.found, self.kept, self.scores, self.gather = patches, kept, [], None

    @property
    def patches(self) -> Tensor:
        """Patch embedding (n, p, d); of several processes, all must ask for it."""
        if self.gather is not None:
            self.found, self.gather = self.gather(self.found), None
        return self.found

    def note(self, scores: Tensor) -> None:
        """Keep the scores (n + m, heads, tokens) of the images' CLS tokens."""
        self.scores.append(scores[: len(self.found)])

    @property
    def attention(self) -> Tensor:
        """CLS-to-patch attention (blocks, n, heads, p)."""
        found = [] if self.kept is None else [self.kept.transpose(0, 1)]
        length = self.found.shape[1]
        if len({scores.shape for scores in self.scores}) > 1:  # adapters may add tokens
            found += [scores.softmax(-1)[None, ..., -length:] for scores in self.scores]
        elif self.scores:  # all blocks in one softmax, which saves launches
            found.append(torch.stack(self.scores).softmax(-1)[..., -length:])
        return found[0] if len(found) == 1 else torch.cat(found)
