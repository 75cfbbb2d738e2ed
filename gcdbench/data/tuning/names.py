"""Names of the evaluation sets that settings are chosen by."""

FOLDS = 4  # of each dataset, see ``folds``
SELECTION = "selection"  # images whose labels were taken away
# the same images under two corruptions that have nothing in common: predictions should agree
VARIANTS = {"selection-noise": "gaussian_noise", "selection-blur": "zoom_blur"}
