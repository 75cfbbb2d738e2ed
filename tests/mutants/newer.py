"""Mutants of the methods of 2023 to 2025, in the form of table.py."""

from __future__ import annotations


def of(method: str) -> tuple[str, ...]:
    """Return the tests of a method against its reference."""
    return (f"tests/methods/test_{method}.py",)


# file -> tests -> (text, what replaces it)
TABLE: dict[str, dict[tuple[str, ...], list[tuple[str, str]]]] = {
    "methods/legogcd.py": {
        of("legogcd"): [
            ("confidence >= c.threshold", "confidence > c.threshold + 0.1"),
            ("chosen &= predicted < self.task.num_old", "chosen &= predicted >= self.task.num_old"),
            ("scores + margin * running", "scores - margin * running"),
            ("(labels == UNLABELLED) & (confidence", "(labels != UNLABELLED) & (confidence"),
            ("cosines.softmax(1).mean(0), 1 - self.config", "step.logits.softmax(1).mean(0), 1 - self.config"),
            ("first, second = p.log_softmax(1), second.exp().log_softmax(1)", "pass"),
            ('"old": c.old_weight * mean_or_zero(certain)', '"old": 0.65 * c.old_weight * mean_or_zero(certain)'),
        ],
    },
    "methods/protogcd.py": {
        of("protogcd"): [
            ("(top.values[:, 1] + 1e-6)", "(1 + 0 * top.values[:, 1])"),
            ("swapped = targets.roll(len(batch), dims=0)", "swapped = targets"),
            ("math.floor(len(soft) // 2 * share)", "math.ceil(len(soft) // 2 * share)"),
            ("scores.logsumexp(1) - math.log(number - 1)", "scores.logsumexp(1)"),
            ("(1 - c.sup_weight) * c.separation_weight", "c.separation_weight"),
            ("temperature=c.teacher_temp)", "temperature=c.student_temp)"),
            ("((epoch - wait) / max(ramp - 1, 1))", "((epoch - wait) / max(ramp, 1))"),
        ],
    },
    "methods/debgcd.py": {
        of("debgcd"): [
            ("unflatten(1, (2, -1))  # (2B", "unflatten(1, (-1, 2)).transpose(1, 2)  # (2B"),
            (".masked_fill(own, 0.0).amax(1)", ".masked_fill(own, 0.0).mean(1)"),
            ("(first - second).square().sum((1, 2))", "(first - second).square().mean((1, 2))"),
            ("(confidence >= c.threshold) * certainty(pairs.detach())", "(confidence >= c.threshold)"),
            ("(confidence >= c.threshold)", "(confidence > c.threshold)"),
            ("return (2 * unknown - 1).abs()", "return 1 - unknown"),
            ("c.debias_weight * (1 - share) * by_label", "c.debias_weight * share**2 * by_label"),
        ],
    },
    "methods/hypcd.py": {
        of("hypcd"): [
            ("mobius_add(moved, exp0(bias, c), 1.0)", "mobius_add(moved, exp0(bias, c), c)"),
            ("near = -pairwise_distances(", "near = pairwise_distances("),
            ("temps[0] * c.angle_scale", "temps[0]"),
            ("(clock.epoch - (first - 1))", "(clock.epoch - first)"),
            ("(1 - share) * angle[0] + share * distance[0]", "share * angle[0] + (1 - share) * distance[0]"),
            ("yield head, 0.0", "yield head, 1.0"),
            ("self.mean / (1 - 0.9**steps)", "self.mean"),
            ("grad = grad.where(finite, 0.0)", "pass"),
        ],
    },
    "methods/cms.py": {
        of("cms"): [
            ("itself | partner, -torch.inf", "itself, -torch.inf"),
            ("moved.detach().norm(dim=1", "moved.norm(dim=1"),
            ("moved = (1 - share) * z + share * means", "moved = (1 - share) * z + share * F.normalize(means, dim=1)"),
            (".indices[:, skip:]].mean(1)", ".indices[:, :-1]].mean(1)"),
            ("if reached >= score:", "if reached > score:"),
            ("waited = 0 if reached > score", "waited = 0 if reached >= score"),
            ('"meanshift": (1 - w) * shifted', '"meanshift": w * shifted'),
        ],
    },
    "methods/selex.py": {
        of("selex"): [
            ("(gaps > 2 * radius)", "(gaps > 2 * radius[:, None])"),
            ("return far / far.sum(1).clamp(min=1e-12)", "return far / far.sum(1, keepdim=True).clamp(min=1e-12)"),
            ("2.0 ** -(rung + 1) * contrast_by_score", "2.0 ** -rung * contrast_by_score"),
            ("z.shape[1] >> (rung + 1)", "z.shape[1] >> rung"),
            ('"sup_contrast": w / 2 * sup_contrast', '"sup_contrast": w * sup_contrast'),
            (".amin(1) / 2", ".amin(1)"),
            ("(1 - share) * other_view(len(scores), scores.device) + share * far", "share * other_view(len(scores), scores.device) + (1 - share) * far"),
            ("        if aligned:", "        if not aligned:"),
        ],
    },
    "methods/pim.py": {
        of("pim"): [
            ("loss = weight * uncertain + (mean", "loss = uncertain + weight * (mean"),
            ("_entropy(p[hidden] + 2.22e-16)", "_entropy(p + 2.22e-16)"),
            ("begin = classifier if chained else start", "begin = start"),
            ("logits = scale * x @ classifier.T", "logits = x @ classifier.T"),
            ("torch.optim.Adam([classifier]", "torch.optim.AdamW([classifier]"),
            ("return min(runs, key=lambda run: run[1])[0]", "return max(runs, key=lambda run: run[1])[0]"),
            ("torch.where(known, labels, before)", "before"),
        ],
    },
}  # fmt: skip
