from __future__ import annotations

import pytest
import torch
from helpers.bench import small_config
from helpers.toy import make_toy
from torch._dynamo.utils import counters

from gcdbench.core.method_spec import MethodSpec
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.nn.compiled import check_compiler, compile_trained


def test_a_missing_compiler_is_named_before_the_first_step(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"train\.compile needs a C\+\+ compiler, .* install one"):
        check_compiler()
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(UserError, match="no-such-compiler"):
        check_compiler()


def has_compiler() -> bool:
    try:
        check_compiler()
    except UserError:
        return False
    return True


needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_compiled_blocks_and_heads_compute_the_same():
    from device.steps import backbone, toy_task

    from gcdbench.training.compose import compose

    found = []
    for compiled in (False, True):
        settings = {"simgcd": small_config("method", "simgcd")}
        model = compose(MethodSpec.parse("simgcd"), settings, toy_task(), backbone())
        before = set(model.state_dict())
        if compiled:
            names = compile_trained(model, model.backbone)
            assert names == ["backbone", "method.projector", "method.classifier"]
        assert set(model.state_dict()) == before
        images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        features = model.backbone(images).cls
        outputs = torch.cat([model.project(features), model.classify(features)], dim=1)
        outputs.square().mean().backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((outputs.detach(), grads))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
    assert set(found[0][1]) == set(found[1][1])
    for name, grad in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_a_cell_that_is_trained_compiled_has_the_losses_of_one_that_is_not(tmp_path):
    toy = make_toy(tmp_path)
    cells = [toy.cell(train={"compile": compiled}) for compiled in (False, True)]
    assert toy.run(cells[:1]).trained == cells[:1]
    counters.clear()
    assert toy.run(cells[1:]).trained == cells[1:]
    assert counters["stats"]["unique_graphs"] >= 3  # the last block and two heads
    plain, compiled = (records.read_done(toy.results, cell) for cell in cells)
    for row, other in zip(plain.curve, compiled.curve, strict=True):
        assert other.terms == pytest.approx(row.terms, rel=1e-4, abs=1e-5)
    for name, scores in plain.sets.items():
        assert compiled.sets[name].rate("all") == scores.rate("all")
