"""The mutants: by file, the text that is replaced, what replaces it, and the tests to run."""

from __future__ import annotations

from mutants import newer
from mutants.run import Mutant


def only(file: str, words: str) -> tuple[str, ...]:
    """Return the tests of a file whose names contain the words: fewer tests, less time."""
    return (f"tests/{file}.py", "-k", words)


def seams(words: str) -> tuple[str, ...]:
    return only("methods/test_seams", words)


def hooks(words: str) -> tuple[str, ...]:
    return only("methods/test_hooks", words)


def path(method: str) -> tuple[str, ...]:
    return only("methods/test_trajectories", f"{method} and float64")


HILO = only("methods/test_hilo", "not contract")
PATCHMIX = only("methods/test_patchmix", "not contract")
UNO = ("tests/methods/test_uno.py",)
ORCA = ("tests/methods/test_orca.py",)
UNIOT = only("methods/test_uniot", "not contract")
LOSSES = ("tests/ops/test_losses.py",)
PAIRS = ("tests/ops/test_pair_losses.py",)
DOMAINS = ("tests/ops/test_domain_losses.py",)
MIXING = ("tests/ops/test_mixing.py",)
TRANSPORT = ("tests/ops/test_transport.py",)
UNIVERSAL = ("tests/ops/test_universal_adaptation.py",)
KMEANS = only("ops/test_kmeans", "original or labelled or spherical or inertia or book")
METRICS = only("ops/test_metrics", "not thousand")
SPLITS = ("tests/data/test_splits.py",)
LOADER = ("tests/training/test_loader.py",)
TRAINER = only("training/test_trainer", "not bits")
EVALUATOR = ("tests/training/test_evaluator.py",)

# file -> tests -> (text, what replaces it)
TABLE: dict[str, dict[tuple[str, ...], list[tuple[str, str]]]] = {
    # --- methods
    "methods/simgcd.py": {
        path("simgcd"): [
            ('{"distil": (1 - c.sup_weight) * distil', '{"distil": c.sup_weight * distil'),
            ("student_temp=c.student_temp, teacher_temp=teacher_temp", "student_temp=teacher_temp"),
            ("entropy_weight=c.entropy_weight", "entropy_weight=1.0"),
        ],
        hooks("logits"): [
            ("return Step(terms, features, cosines / c.student_temp", "return Step(terms, features, cosines"),
            ("return self.classifier(features) / self.config.student_temp", "return self.classifier(features)"),
        ],
    },
    "methods/gcd.py": {
        path("gcd and not simgcd"): [
            ('"contrast": (1 - w) * contrast', '"contrast": w * contrast'),
            ("sup_con(z[rows], labels[rows]", "sup_con(z, labels"),
        ],
        hooks("gcd"): [
            ("            normalise=True,\n        )\n", "        )\n"),
            ("            targets,\n            self.task.num_classes", "            targets,\n            self.task.num_classes - 1"),
            ('pool.labelled[:0] if c.clustering == "per_set_plain"', 'pool.labelled[:0] if c.clustering == "per_set"'),
            ("labels[rows] = clusters.labels.to(labels)", "labels[rows] = clusters.labels.flip(0).to(labels)"),
            ("for rows in pool.sets:", "for rows in pool.sets[:1]:"),
        ],
    },
    "methods/hilo.py": {
        path("hilo_released"): [
            ("reading.cosines[: len(batch)]", "reading.cosines[len(batch) :]"),
            ("rows, c.domain_entropy_weight)", "rows, c.entropy_weight)"),
            ('"kmeans_tol": 1e-4', '"kmeans_tol": 1e2'),
        ],
        HILO: [
            ("        return -estimate", "        return estimate"),
            ("hidden = reverse_gradient(hidden)", "pass"),
            ("fooled = estimate.detach() < INDEPENDENT", "fooled = estimate.detach() > INDEPENDENT"),
            ("batch.here(order[~labelled])", "batch.here(order[labelled])"),
            ("return labels.clamp(max=0)", "return labels"),
            ("if labelled.all() or not labelled.any()", "if labelled.all()"),
            ("backbone.read_from(config.semantic_block)", "backbone.tap(config.semantic_block)"),
            ("images, self.config.domain_block)", "images, 1)"),
            ('"critic_update": "joint"', '"critic_update": "adversarial"'),
            ("excess.log1p().copysign(beyond)", "0 * excess"),
            ("(x.detach() - self.mean) * (self.var", "x.detach() * (self.var"),
            ("_PassGradient.apply(x, found)", "(x - self.mean) * (self.var + self.floor**2).rsqrt()"),
            ("scores = interaction(scores) + self.offset", "scores = scores + self.offset"),
            ("scores - scores.mean(1, keepdim=True) - (", "scores - ("),
            ("clamp(min=1 - self.momentum)", "clamp(min=self.momentum)"),
            ('"self": ("contrast",)', '"self": ("sup_contrast",)'),
        ],
    },
    "methods/orca.py": {
        path("orca"): [
            ("self.uncertainty.copy_(1 - total / rows)", "self.uncertainty.copy_(total / rows)"),
            ("c.pair_weight * agreement_loss(first, second[partners])", "c.pair_weight * agreement_loss(first, first[partners])"),
            ("c.entropy_weight * spread", "-c.entropy_weight * spread"),
        ],
        (*ORCA, "tests/methods/test_hooks.py", "-k", "not contract and not gcd and not uniot"): [
            ("sure = confidence(first.detach()[batch.unlabelled_rows])", "sure = confidence(first.detach()[batch.labelled_rows])"),
            ("        unit_rows_(self.classifier.weight)", "        self.classifier"),
            ("        self.confidence.zero_()", "        self.confidence"),
        ],
    },
    "methods/uno.py": {
        path("uno"): [
            ("teachers = torch.stack([targets[teacher] for _, teacher in pairs])", "teachers = torch.stack([targets[student] for student, _ in pairs])"),
            ("first_class=0 if c.assign_to", "first_class=self.task.num_old if c.assign_to"),
            ("        for head in (self.known, self.cluster, self.over):\n            head.normalise_()\n", ""),
        ],
        UNO: [
            ("for t in range(TEACHERS) if s != t]", "for t in range(TEACHERS)]"),
            ("logits[:TEACHERS].detach()", "logits[-TEACHERS:].detach()"),
            ("self.head_losses.argmin(0, keepdim=True)", "self.head_losses.argmax(0, keepdim=True)"),
            ("            self.head_losses.zero_()\n", ""),
            ("if (clock.step + 1) % clock.steps_per_epoch == 0", "if clock.step % clock.steps_per_epoch == 0"),
            ("self.queue.push(step.features[: len(batch)][hidden], batch.index[hidden])", "self.queue.push(step.features[: len(batch)], batch.index)"),
        ],
    },
    "methods/rankstats.py": {
        path("rankstats"): [
            ("same = with_label_pairs(same, batch.labels)", "pass"),
            ("ramp * F.mse_loss(p, q)", "F.mse_loss(p, q)"),
            ("same_top_dimensions(features[: len(batch)]", "same_top_dimensions(features[len(batch) :]"),
            ("return widen(self.classifier(features))", "return self.classifier(features).float()"),
        ],
        path("rankstats and known"): [('c.ce_scope == "all" else self.task.num_old', 'c.ce_scope != "all" else self.task.num_old')],
    },
    "methods/uniot.py": {
        ("tests/methods/test_uniot.py", "tests/methods/test_hooks.py", "-k", "not contract and (test_uniot or uniot)"): [
            ("detecting = clock.step > c.detect_after", "detecting = True"),
            ("detecting = clock.step > c.detect_after", "detecting = clock.step >= c.detect_after"),
            ("common, rejected = self._common_class_loss", "_, rejected = self._common_class_loss"),
            ("return loss, ~found.confident[len(memory) :]", "return 0 * loss, ~found.confident[len(memory) :]"),
            ('"common": c.target_weight * common', '"common": common'),
            ("labels, sure = found.labels[len(memory) :], sure[len(memory) :]", "labels, sure = found.labels[-len(target) :], ~sure[-len(target) :]"),
            ("share = 1 / (sizes[labels.clamp(min=0)]", "share = 1 / (sizes.sum()[None]"),
            ('{"class_balanced": True', '{"class_balanced": False'),
            ("return [(heads, 1.0), (backbone, self.config.backbone_lr)]", "return [(heads, 1.0), (backbone, 1.0)]"),
            ("        self.clusters.normalise_()\n", ""),
            ("labels[rejected] = task.num_old + assign(", "labels[rejected] = assign("),
            ("return order[labels[order] == UNLABELLED]", "return order[labels[order] != UNLABELLED]"),
            ("labels[part], rejected[part] = found.labels, ~found.confident", "labels[part], rejected[part] = found.labels, found.confident"),
            ("self.class_mass.lerp_(found.class_mass, 1 - c.mass_momentum)", "self.class_mass.lerp_(found.class_mass, c.mass_momentum)"),
        ],
    },
    "methods/ncdd.py": {
        ("tests/methods/test_ncdd.py", "tests/methods/test_hooks.py", "-k", "ncdd"): [
            ("unlabelled = logits[batch.in_views(batch.unlabelled_rows)]", "unlabelled = logits"),
            ('terms["certainty"] = weight * mean_entropy(unlabelled)', 'terms["certainty"] = -weight * mean_entropy(unlabelled)'),
            ('        del terms["entropy"]', "        labels"),
            ("weight = (1 - c.sup_weight) * c.information_weight", "weight = c.sup_weight * c.information_weight"),
        ],
    },
    # --- techniques
    "methods/techniques/mcc.py": {
        seams("mcc"): [
            ("batch.in_views(batch.unlabelled_rows)", "batch.in_views(batch.labelled_rows)"),
            ("c.scale * step.logits[hidden]", "c.scale * step.logits"),
            ('"confusion": c.weight * confusion', '"confusion": -c.weight * confusion'),
        ],
    },
    "methods/techniques/nwd.py": {
        seams("nwd"): [
            ("-c.weight * discrepancy", "c.weight * discrepancy"),
            ("model.classify(reverse_gradient(step.features, strength))", "model.classify(step.features)"),
            ("strength = warm_start(clock.step, length=c.warmup)", "strength = 1.0"),
            ("nuclear_discrepancy(posteriors[source], posteriors[target])", "nuclear_discrepancy(posteriors[target], posteriors[source])"),
        ],
    },
    "methods/techniques/pmtrans.py": {
        seams("pmtrans"): [
            ("share = attention_share(beta, scores[source])", "share = attention_share(beta, scores[target])"),
            ("share = attention_share(beta, scores[source])", "share = 1 - attention_share(beta, scores[source])"),
            ("return patch_mix(patches[source], patches[target], beta)", "return patch_mix(patches[target], patches[source], beta)"),
            ("cosines.scatter_(1, self.place[index][:, None], -torch.inf)", "self.place[index]"),
            ("hidden = batch.unlabelled_rows\n", "hidden = batch.order\n"),
            (".float().softmax(1).square()", ".float().softmax(1)"),
        ],
    },
    "methods/techniques/patchmix.py": {
        (*PATCHMIX[:1], "tests/methods/test_seams.py", "-k", "patchmix and not contract"): [
            ("scores[target] if c.target_attention else None", "None"),
            ("anchors = alpha if c.weigh_contrast else None", "anchors = None"),
            ("beta.repeat(2, 1)", "beta.repeat(2, 1).flip(1)"),
            ("smoothed_cross_entropy(logits, labels, alpha,", "smoothed_cross_entropy(logits, labels, 1 - alpha,"),
            ('"sup_contrast": on_features * sup_contrast', '"sup_contrast": on_labels * sup_contrast'),
            ('"distil": on_labels * distil', '"distil": on_features * distil'),
            ("return mean / mean.sum(1, keepdim=True)", "return mean.softmax(1)"),
        ],
        path("hilo_released"): [
            ("if self.config.attention == \"softmax\"", "if self.config.attention != \"softmax\""),
            ('"attention_gradient": True', '"attention_gradient": False'),
            ("teacher_start: float = 0.7", "teacher_start: float = 0.6"),
        ],
    },
    "methods/techniques/curriculum.py": {
        ("tests/methods/test_curriculum.py", "-k", "not contract"): [
            ("clock.epoch > round(c.switch", "clock.epoch < round(c.switch"),
            ("clock.epoch > round(c.switch", "clock.epoch >= round(c.switch"),
            ("found.labels.to(self.shifted.device) == 1", "found.labels.to(self.shifted.device) == 0"),
            ("torch.where(shifted, far, near)", "torch.where(shifted, near, far)"),
        ],
    },
    "methods/techniques/cl.py": {
        seams("test_cl"): [
            ("rank = nearest.argsort(stable=True)", "rank = (-nearest).argsort(stable=True)"),
            ("self.rank.cpu() < share", "self.rank.cpu() > share"),
            ("admitted * mass, weights)", "admitted, weights)"),
            (".amin(1)", ".amax(1)"),
        ],
    },
    "methods/techniques/spl.py": {
        seams("spl"): [
            ("losses <= self.bound.cpu()", "losses >= self.bound.cpu()"),
            ("self.bound.mul_(self.config.growth)", "self.bound.div_(self.config.growth)"),
            ("soft_cross_entropy(second, first.softmax(1))", "soft_cross_entropy(first, second.softmax(1))"),
            ("seen = hidden & (losses > 0)", "seen = losses > 0"),
        ],
    },
    "methods/techniques/sfa.py": {
        seams("sfa"): [
            (" + c.shift_noise * self.deviation * shift", ""),
            ("c.shift_noise * self.deviation * shift", "c.shift_noise * shift"),
            ("(1 + c.scale_noise * scale) * features", "features"),
            ("1 - self.config.momentum", "self.config.momentum"),
        ],
    },
    "methods/techniques/cutmix.py": {
        seams("cutmix"): [
            ("_, share = boxes[sides[0]]", "_, _ = boxes[sides[0]]"),
            ('if self.config.share == "image" else 1', "if True else 1"),
            ("here[tuple(view.shape[-2:])]) for view in batch.pixels]", "here[sides[0]]) for view in [batch.pixels[0]] * 2]"),
        ],
        only("methods/test_view_sizes", "cutmix_cuts"): [
            ("here[tuple(view.shape[-2:])])", "here[sides[0]])"),
        ],
    },
    "methods/techniques/mixup.py": {
        seams("mixup"): [
            ('if self.config.share == "image" else 1', "if True else 1"),
            ("mixup(view, *here)", "mixup(view, here[0], 1 - here[1])"),
            ("partners[order] = order[partners_within(batch.cpu_labelled[order], generator=generator)]", "partners[order] = order.flip(0)"),
        ],
    },
    "methods/techniques/mixstyle.py": {
        seams("style"): [
            (">= c.probability", "< c.probability"),
            ("block not in c.blocks", "block in c.blocks"),
            ("patches = x[:, : self.prefix], x[:, self.prefix :]", "patches = x[:, :0], x"),
        ],
    },
    "methods/techniques/efdm.py": {
        seams("style"): [
            (">= c.probability", "< c.probability"),
            ("patches.split(len(batch))", "patches.flip(0).split(len(batch))"),
        ],
    },
    # --- losses
    "gcdbench/ops/losses.py": {
        LOSSES: [
            (".roll(n // 2)", ".roll(1)"),
            ("keepdim=True, dtype=z.dtype).clamp(min=1)", "keepdim=True, dtype=z.dtype) + 1"),
            ("share = share * weight[:, None]", "pass"),
            ("(logits.detach() / teacher_temp)", "(logits.detach() / student_temp)"),
            (".softmax(1).roll(len(logits) // 2, dims=0)", ".softmax(1)"),
            ("warmup = min(warmup, epochs)", "warmup = warmup"),
            ("_SumPLogP.apply(p) + math.log(logits.shape[1])", "_SumPLogP.apply(p)"),
            ("loss / (known != UNLABELLED).sum().clamp(min=1)", "loss / len(known)"),
            ("alpha * hard + (1 - alpha) * log_p.mean(1)", "alpha * hard + (1 - alpha) * log_p.sum(1)"),
            ("scale * math.exp(-5.0 * missing**2)", "scale * math.exp(-5.0 * missing)"),
        ],
        path("simgcd"): [
            ('"contrast": (1 - sup_weight) * contrast', '"contrast": sup_weight * contrast'),
        ],
    },
    "gcdbench/ops/pair_losses.py": {
        PAIRS: [
            ("torch.where(same, agree + eps, 1 - agree + eps)", "torch.where(same, 1 - agree + eps, agree + eps)"),
            (".clamp(max=largest)", ""),
            ("(labels[:, None] == labels) & ~itself", "labels[:, None] == labels"),
            ("cross_entropy_on(logits + margin * start", "cross_entropy_on(logits - margin * start"),
        ],
    },
    "gcdbench/ops/domain_losses.py": {
        DOMAINS: [
            ("weight = 1 + (p", "weight = 1 - (p"),
            ("(norms[0] - norms[1]) / len(target)", "(norms[1] - norms[0]) / len(target)"),
            ("return -ctx.strength * grads[0], None", "return ctx.strength * grads[0], None"),
            ("math.tanh(step / (2 * length))", "math.tanh(step / length)"),
        ],
    },
    "gcdbench/ops/mixing.py": {
        MIXING: [
            ("weight * x + (1 - weight) * x[partners]", "(1 - weight) * x + weight * x[partners]"),
            ("(1 - covered).to(share.dtype)", "share"),
            ("of_source / (of_source + of_target)", "of_target / (of_source + of_target)"),
            ("weight, tiny = (1 - share) * confidence,", "weight, tiny = (1 - share),"),
            ("        sums[1] = sums[1].detach()\n", ""),
            ("share = share * share.sum() / sums[0].detach()", "share = share * share.sum() / sums[0]"),
            ("for side in (labelled, ~labelled):\n        rows", "for side in (labelled | ~labelled,):\n        rows"),
            ("share * to_source + (1 - share) * to_target))", "share * to_target + (1 - share) * to_source))"),
        ],
    },
    "gcdbench/ops/transport.py": {
        TRANSPORT: [
            ("log_q = log_q - log_q.logsumexp(-2, keepdim=True)\n", ""),
            ("exponent = penalty / (penalty + epsilon)", "exponent = 1.0"),
            ("F.pad(q, (first_class, 0))", "F.pad(q, (0, first_class))"),
        ],
    },
    "gcdbench/ops/universal_adaptation.py": {
        UNIVERSAL: [
            ("confident & ~absent[labels]", "confident"),
            ("prototypes[similarity.argmin(1)]", "prototypes[similarity.argmax(1)]"),
            ("masked_fill(same_image, -torch.inf)", "masked_fill(same_image & False, -torch.inf)"),
            ("(loss(own, near) + loss(near, own)) / 2) / 2", "loss(own, own)) / 2"),
        ],
    },
    "gcdbench/ops/kmeans/api.py": {
        KMEANS: [
            ("sums[: len(anchors)] = anchors.sums\n", ""),
            ("run.inertia < best.inertia * (1 - 1e-7)", "run.inertia > best.inertia"),
            ("means = normalize(means, dim=1) if spherical else means\n", ""),
        ],
    },
    "gcdbench/nn/critics.py": {
        ("tests/nn/test_critics.py",): [
            ("joint = F.logsigmoid(scores.diagonal()).mean()", "joint = F.logsigmoid(-scores.diagonal()).mean()"),
            ("/ (n * (n - 1))", "/ (n * n)"),
        ],
    },
    # --- contract and loop
    "gcdbench/training/compose.py": {
        hooks("techniques or technique or classifier or half_labelled or predicted_new"): [
            ("            weights = technique.weights(weights, clock, context)\n", "            technique.weights(weights, clock, context)\n"),
            ("        self.method.after_step(batch, step, clock)\n", ""),
            ("            technique.after_step(self, batch, step, clock)\n", "            technique\n"),
            ("            features = technique.features(features, batch, clock)\n", "            technique.features(features, batch, clock)\n"),
            ("            batch = technique.mix(batch, clock)\n", "            technique.mix(batch, clock)\n"),
            ("extra += list(self.auxiliary.parameters())", "extra += []"),
            ("return self.auxiliary(features) / AUXILIARY_TEMP", "return self.auxiliary(features)"),
            ("(chosen >= self.method.task.num_old)", "(chosen > self.method.task.num_old)"),
            ("step.logits[batch.in_views(batch.unlabelled_rows, views)]", "step.logits"),
        ],
    },
    "gcdbench/training/method.py": {
        hooks("half_labelled"): [
            ('if sampling == "natural":', 'if sampling != "natural":'),
            ("share = labelled.sum().double() / (~labelled).sum().clamp(min=1)", "share = (~labelled).sum().double() / labelled.sum().clamp(min=1)"),
        ],
    },
    "gcdbench/training/batch.py": {
        seams("mixup or cutmix"): [
            ("share.cpu() >= 0.5", "share.cpu() <= 0.5"),
            ("share[:, None] * targets + (1 - share)[:, None] * targets[partners]", "targets"),
            ("index=self.here(index)", "index=self.index"),
        ],
    },
    "gcdbench/training/optimizer.py": {
        TRAINER: [
            ("(1 + math.cos(math.pi * progress)) / 2", "(1 - progress)"),
            ("floor = config.lr * config.min_lr_share", "floor = 0.0"),
            ("p.ndim < 2 and config.decay", "p.ndim > 1 and config.decay"),
            ("round(0.85 * config.epochs)", "round(0.9 * config.epochs)"),
            ("(config.lr - floor) * epoch / max(warmup - 1, 1)", "(config.lr - floor) * epoch / max(warmup, 1)"),
        ],
        path("simgcd"): [
            ('nesterov=config.optimizer == "nesterov"', "nesterov=True"),
            ("((decayed, config.weight_decay), (flat, 0.0))", "((decayed, 0.0), (flat, 0.0))"),
        ],
    },
    "gcdbench/training/trainer.py": {
        TRAINER: [
            ('group["lr"] = lr * group["scale"]', 'group["lr"] = lr'),
            ("seen.nanmean(0)", "seen.nan_to_num().mean(0)"),
        ],
        path("simgcd"): [
            ("        self.optimizer.zero_grad(set_to_none=True)\n", ""),
        ],
    },
    "gcdbench/training/loader.py": {
        LOADER: [
            ('seeded(self.seed, "batches", epoch)', 'seeded(self.seed, "batches")'),
            ("views, i = take(views, rows), i[rows]", "views = take(views, rows)"),
            ("np.arange(number)) % len(good)", "np.arange(number)).clip(max=len(good) - 1)"),
        ],
        (*SPLITS, "tests/training/test_loader.py"): [
            ("torch.multinomial(weights, number, replacement=True", "torch.multinomial(torch.ones_like(weights), number, replacement=True"),
        ],
    },
    "gcdbench/training/features/pool.py": {
        EVALUATOR: [
            ("labels[self._positions[\"labelled\"]] = torch", "labels[self._positions[\"unlabelled\"][: len(problem.labelled)]] = torch"),
            ("        self._features = None\n\n    @torch", "        pass\n\n    @torch"),
        ],
    },
    "gcdbench/training/evaluator.py": {
        EVALUATOR: [
            ("predicted[np.searchsorted(encoder.query_rows, one.rows)]", "predicted[: len(one.rows)]"),
            ("    model.eval()\n", ""),
        ],
    },
    "gcdbench/training/scoring/scores.py": {
        METRICS: [
            ('"old_to_new": is_old & ~said_old', '"old_to_new": is_old & said_old'),
            ('ratio(errors["new_to_old"], n - n_old)', 'ratio(errors["new_to_old"], n)'),
            ("v / len(rows) for k", "v for k"),
        ],
    },
    "gcdbench/ops/metrics.py": {
        METRICS: [
            ("np.arange(len(occurs)) < num_old", "np.arange(len(occurs)) <= num_old"),
            ("ratio(recall[group].sum(), group.sum())", "ratio(recall[group].sum(), len(group))"),
        ],
    },
    "gcdbench/ops/contingency.py": {
        METRICS: [
            ("np.subtract(most, self._table, out=cost[:clusters, :classes])", "np.add(0, self._table, out=cost[:clusters, :classes])"),
            ("keys = preds * classes + labels", "keys = preds * clusters + labels"),
        ],
    },
    "gcdbench/data/splits.py": {
        SPLITS: [
            ("np.flatnonzero(labels < num_old)", "np.flatnonzero(labels <= num_old)"),
            ("[: int(share * len(old))]", "[-int(share * len(old)) :]"),
            ("int(share * len(members)), replace=False", "int(np.ceil(share * len(members))), replace=False"),
            ("return labelled[~chosen], labelled[chosen]", "return labelled[chosen], labelled[~chosen]"),
            ("labels[order] = np.arange(len(order))", "labels = order"),
        ],
    },
}  # fmt: skip

MUTANTS = [
    Mutant(file, old, new, tests)
    for file, by_tests in {**TABLE, **newer.TABLE}.items()
    for tests, changes in by_tests.items()
    for old, new in changes
]
