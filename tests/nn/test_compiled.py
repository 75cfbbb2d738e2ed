from __future__ import annotations

import pytest
import torch
from helpers.bench import small_config

from gcdbench.core.method_spec import MethodSpec
from gcdbench.errors import UserError
from gcdbench.nn.compiled import check_compiler, compile_trained


def test_a_missing_compiler_is_named_before_the_first_step(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(UserError, match=r"train\.compile needs a C\+\+ compiler, .* install one"):
        check_compiler()
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(UserError, match="no-such-compiler"):
        check_compiler()


@pytest.mark.slow
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
