"""Everything that the author of a method or technique imports, in one place.

The contract (``Method``, ``Technique`` and what their methods are given) and its checks, heads,
losses and random draws. What two methods or more use belongs here; a plug-in imports nothing else
of gcdbench. What a plug-in imports from here is part of its cells' key, the rest is not.
"""

from __future__ import annotations

from gcdbench.data.views import Views, view_kind
from gcdbench.nn.adapters import PIXELS, Adapter, AddedTokens, DeepPrompts, LoRA, PixelPrompt
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.critics import CosineCritic, MLPCritic, js_mutual_information
from gcdbench.nn.heads import (
    CosineClassifier,
    GCDHead,
    MultiHeadPrototypes,
    ProjectionHead,
    Prototypes,
    unit_rows_,
)
from gcdbench.nn.memory import ReadBack, Ring, last_of_same
from gcdbench.nn.tokens import Encoded, Patches, Recording, Tokens
from gcdbench.ops.distance_losses import (
    contrast_by_score,
    euclidean_distances,
    log_prob_of_others,
    other_view,
)
from gcdbench.ops.domain_losses import (
    minimum_class_confusion,
    nuclear_discrepancy,
    reverse_gradient,
    warm_start,
)
from gcdbench.ops.kmeans.api import KMeansResult, assign, semi_supervised_kmeans
from gcdbench.ops.kmeans.balanced import balanced_kmeans
from gcdbench.ops.kmeans.rows import Rows
from gcdbench.ops.labels import UNLABELLED
from gcdbench.ops.linkage import ward_clusters
from gcdbench.ops.losses import (
    classifier_terms,
    contrast_terms,
    cross_entropy_on,
    info_nce,
    mean_entropy_deficit,
    mean_or_zero,
    parametric_terms,
    ramp_up,
    self_distillation,
    smoothed_cross_entropy,
    soft_cross_entropy,
    sup_con,
    teacher_temperature,
)
from gcdbench.ops.metrics import accuracies
from gcdbench.ops.mixing import (
    attention_share,
    cutmix,
    cutmix_boxes,
    efdm,
    image_pairs,
    mixed_feature_loss,
    mixed_label_loss,
    mixstyle,
    mixup,
    partners_within,
    patch_mix,
    positive_parameter,
    stacked_pairs,
    style_partners,
)
from gcdbench.ops.neighbours import Neighbours, k_nearest
from gcdbench.ops.pair_losses import (
    agreement_loss,
    margin_cross_entropy,
    pairwise_cross_entropy,
    positive_partners,
    same_top_dimensions,
    with_label_pairs,
)
from gcdbench.ops.precision import full_precision, widen
from gcdbench.ops.random import draw_beta, draw_integers, draw_permutation, draw_uniform, seeded
from gcdbench.ops.transport import balanced_targets, sinkhorn, unbalanced_transport
from gcdbench.ops.unit import unit_rows
from gcdbench.ops.universal_adaptation import (
    Detection,
    adaptive_filling,
    detect_common,
    nearest_neighbours,
    private_class_loss,
)
from gcdbench.training.batch import Batch
from gcdbench.training.conformance import CHECKS, Bench
from gcdbench.training.method import (
    Clock,
    EpochPlan,
    FitContext,
    Method,
    Model,
    Phase,
    PoolFeatures,
    Step,
    Task,
    Technique,
)

__all__ = [
    "CHECKS",
    "PIXELS",
    "UNLABELLED",
    "Adapter",
    "AddedTokens",
    "Backbone",
    "Batch",
    "Bench",
    "Clock",
    "CosineClassifier",
    "CosineCritic",
    "DeepPrompts",
    "Detection",
    "Encoded",
    "EpochPlan",
    "FitContext",
    "GCDHead",
    "KMeansResult",
    "LoRA",
    "MLPCritic",
    "Method",
    "Model",
    "MultiHeadPrototypes",
    "Neighbours",
    "Patches",
    "Phase",
    "PixelPrompt",
    "PoolFeatures",
    "ProjectionHead",
    "Prototypes",
    "ReadBack",
    "Recording",
    "Ring",
    "Rows",
    "Step",
    "Task",
    "Technique",
    "Tokens",
    "Views",
    "accuracies",
    "adaptive_filling",
    "agreement_loss",
    "assign",
    "attention_share",
    "balanced_kmeans",
    "balanced_targets",
    "classifier_terms",
    "contrast_by_score",
    "contrast_terms",
    "cross_entropy_on",
    "cutmix",
    "cutmix_boxes",
    "detect_common",
    "draw_beta",
    "draw_integers",
    "draw_permutation",
    "draw_uniform",
    "efdm",
    "euclidean_distances",
    "full_precision",
    "image_pairs",
    "info_nce",
    "js_mutual_information",
    "k_nearest",
    "last_of_same",
    "log_prob_of_others",
    "margin_cross_entropy",
    "mean_entropy_deficit",
    "mean_or_zero",
    "minimum_class_confusion",
    "mixed_feature_loss",
    "mixed_label_loss",
    "mixstyle",
    "mixup",
    "nearest_neighbours",
    "nuclear_discrepancy",
    "other_view",
    "pairwise_cross_entropy",
    "parametric_terms",
    "partners_within",
    "patch_mix",
    "positive_parameter",
    "positive_partners",
    "private_class_loss",
    "ramp_up",
    "reverse_gradient",
    "same_top_dimensions",
    "seeded",
    "self_distillation",
    "semi_supervised_kmeans",
    "sinkhorn",
    "smoothed_cross_entropy",
    "soft_cross_entropy",
    "stacked_pairs",
    "style_partners",
    "sup_con",
    "teacher_temperature",
    "unbalanced_transport",
    "unit_rows",
    "unit_rows_",
    "view_kind",
    "ward_clusters",
    "warm_start",
    "widen",
    "with_label_pairs",
]
