"""Make corruptions.npz with the reference package, in an environment that has it.

    python tests/golden/make_corruptions.py

needs imagecorruptions 1.1.2 and libraries old enough for it (README_corruptions.md says which).
The tests import the images and the ice from here, so that both sides see the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

# how often a variant is drawn: often where one draw decides about the whole image
DRAWS = {
    "gaussian_noise": 2,
    "shot_noise": 2,
    "impulse_noise": 2,
    "zoom_blur": 1,
    "snow": 12,
    "frost": 60,
    "fog": 60,
    "speckle_noise": 2,
    "spatter": 12,
}
ZOOM_SIZES = ((224, 224), (32, 32), (97, 61), (150, 200))
SMALL = (48, 64)
SEED = 5


def shades(height: int, width: int, seed: int, octaves: tuple[int, ...]) -> np.ndarray:
    """Add up random grids, interpolated linearly; in whole numbers, equal on every machine."""
    random = np.random.RandomState(seed)
    total = np.zeros((height, width, 3), dtype=np.int64)
    y, x = np.arange(height), np.arange(width)
    for side in octaves:
        grid = random.randint(0, 256, (height // side + 2, width // side + 2, 3))
        down, right = (y % side)[:, None, None], (x % side)[None, :, None]
        rows = grid[y // side] * (side - down) + grid[y // side + 1] * down
        total += (rows[:, x // side] * (side - right) + rows[:, x // side + 1] * right) // side
    return total // sum(octaves)


def images(height: int, width: int) -> list[np.ndarray]:
    """Make three images: soft with blown-out parts, an object on a ground, fine grain."""
    soft = (shades(height, width, 1, (64, 32, 16, 8, 4)) - 128) * 4 + 140
    thing = shades(height, width, 2, (32, 8, 2)) // 2
    y, x = np.mgrid[:height, :width]
    disc = (2 * y - height) ** 2 + (2 * x - width) ** 2 < (height * width) // 3
    thing[disc] += np.array([120, 60, 10])
    thing[: height // 6, : width // 3] = 0
    thing[-height // 6 :, -width // 3 :] = 255
    grain = (shades(height, width, 3, (16, 1, 1, 1)) - 128) * 2 + 128
    return [np.clip(image, 0, 255).astype(np.uint8) for image in (soft, thing, grain)]


def ice() -> list[np.ndarray]:
    """Make five pictures that stand in for the photographs of ice."""
    tints = ((0, 40, 60), (90, 95, 100), (80, 90, 110), (30, 45, 60), (0, 10, 20))
    return [
        np.clip(shades(260, 340, 10 + i, (64, 32, 16)) + np.array(tint), 0, 255).astype(np.uint8)
        for i, tint in enumerate(tints)
    ]


def counts(clean: np.ndarray, corrupted: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Count the values (256) and the differences to the clean image (511)."""
    values = sum(np.bincount(image.ravel(), minlength=256) for image in corrupted)
    changes = sum(
        np.bincount(image.ravel().astype(np.int64) - clean.ravel() + 255, minlength=511)
        for image in corrupted
    )
    return values.astype(np.uint32), changes.astype(np.uint32)


def main() -> None:
    """Run the reference package."""
    import cv2
    import imagecorruptions
    import PIL
    import scipy
    import skimage

    photographs, pictures = cv2.imread, ice()

    def drawn_ice(name: str) -> np.ndarray:
        return pictures[int(Path(name).stem[-1]) - 1][..., ::-1]

    golden = {
        "versions": np.array(
            "imagecorruptions 1.1.2, "
            f"numpy {np.__version__}, scipy {scipy.__version__}, scikit-image "
            f"{skimage.__version__}, opencv {cv2.__version__}, Pillow {PIL.__version__}"
        )
    }
    np.random.seed(SEED)
    cv2.imread = drawn_ice
    for corruption, draws in [*DRAWS.items(), ("frost_photographs", DRAWS["frost"])]:
        name = "frost" if corruption == "frost_photographs" else corruption
        cv2.imread = photographs if corruption == "frost_photographs" else drawn_ice
        found = [
            [
                counts(clean, [imagecorruptions.corrupt(clean, s, name) for _ in range(draws)])
                for clean in images(224, 224)
            ]
            for s in range(1, 6)
        ]
        golden[f"{corruption}_values"] = np.array([[v for v, _ in row] for row in found])
        golden[f"{corruption}_changes"] = np.array([[c for _, c in row] for row in found])
    cv2.imread = drawn_ice
    for size in ZOOM_SIZES:
        for number, clean in enumerate(images(*size)):
            blurred = [imagecorruptions.corrupt(clean, s, "zoom_blur") for s in range(1, 6)]
            digests = [hashlib.sha256(image.tobytes()).hexdigest() for image in blurred]
            golden[f"zoom_blur_{size[0]}x{size[1]}_{number}"] = np.array(digests)
    for corruption in ("snow", "frost", "fog", "spatter"):
        for severity in range(1, 6):
            np.random.seed(SEED + severity)
            clean = images(*SMALL)[0]
            seeded = imagecorruptions.corrupt(clean, severity, corruption)
            golden[f"{corruption}_seeded_{severity}"] = seeded
    np.savez_compressed(Path(__file__).parent / "corruptions.npz", **golden)


if __name__ == "__main__":
    main()
