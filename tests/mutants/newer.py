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
            ("change = lr * finite * self.mean", "change = lr * self.mean"),
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
    "methods/rlcd.py": {
        of("rlcd"): [
            ("backbone.final_norm = False", "backbone.final_norm = True"),
            ("| (labels != UNLABELLED)", "& (labels != UNLABELLED)"),
            ("both = base.view(2, -1).all(0)", "both = base.view(2, -1).any(0)"),
            ("first_views = 2.0 * (torch.arange(len(y), device=y.device) < len(y) // 2)", "first_views = torch.ones(len(y))"),
            ("cosines[:, :old] / c.student_temp, base", "cosines[:, -old:] / c.student_temp, base"),
            ("target.amax(1) * loss", "loss"),
            ("view_agreement(cosines / c.agree_temp, labels, every)", "view_agreement(cosines / c.student_temp, labels, every)"),
            ("(p * (p + EPS).log()).sum()", "(p * p.log()).sum()"),
            ("apart = ((first.exp() - second.exp()) * (first - second)).sum(1) / 2", "apart = (first.exp() * (first - second)).sum(1)"),
            ("depth=backbone.num_blocks - 1", "depth=backbone.num_blocks - 2"),
            ("self.config.block_lr\n", "1.0\n"),
        ],
    },
    "methods/sptnet.py": {
        of("sptnet"): [
            ("clock.steps_per_epoch + 1) // c.spell", "clock.steps_per_epoch) // c.spell"),
            ("        if turn % 2:", "        if not turn % 2:"),
            ("shown = torch.cat([plain, plain + self", "shown = torch.cat([plain + self.prompts.image() * 0, plain - self"),
            ("outer[:, None] | outer", "outer[:, None] & outer"),
            ("place >= patch - width", "place > patch - width"),
            ("if clock.epoch < first:", "if clock.epoch <= first:"),
            ("c.prompt_lr * min(", "min("),
            ('name != "simgcd")', 'name == "simgcd")'),
            ("        if self.prompted:\n", "        if True:\n"),
            (".index_add(0, self.places, self.value)", ".index_copy(0, self.places, self.value)"),
        ],
    },
    "methods/mugcd.py": {
        of("mugcd"): [
            ("logits[len(batch) :], taught", "logits[: len(batch)], taught"),
            ("math.pi * (clock.epoch - first) / (end - first)", "math.pi * clock.epoch / (end - first)"),
            ("self.rate(clock, first, clock.epochs)", "1.0"),
            (".cls[: len(batch)]", ".cls[len(batch) :]"),
            ("mine.lerp_(theirs, 1 - momentum)", "mine.lerp_(theirs, momentum)"),
            ("            self.follow(0.0)\n", ""),
            ("(1 + math.cos(math.pi * done)) / 2", "(1 - math.cos(math.pi * done)) / 2"),
            ("(taught.float() / sharp)", "(taught.float() / c.student_temp)"),
            ('head = self.teacher["head"] if taught else self.classifier', "head = self.classifier"),
        ],
    },
}  # fmt: skip
