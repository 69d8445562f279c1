"""Optimisers by name, with the user's settings, over the trainable parameters alone."""

import pytest
import torch
from torch import nn

from hone.errors import UserError
from hone.training.optimizer import build_optimizer


def parameters() -> list[nn.Parameter]:
    return [
        nn.Parameter(torch.ones(3, 2)),
        nn.Parameter(torch.ones(2), requires_grad=False),
        nn.Parameter(torch.ones(4)),
    ]


def test_the_default_is_adamw_with_the_settings_given():
    optimizer = build_optimizer(parameters(), lr=0.1, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.2)
    assert type(optimizer) is torch.optim.AdamW
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.1, (0.8, 0.9), 1e-5, 0.2)


def test_frozen_parameters_are_left_out():
    optimizer = build_optimizer(parameters(), lr=0.1)
    assert [tuple(p.shape) for group in optimizer.param_groups for p in group["params"]] == [(3, 2), (4,)]


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "RMSprop", "Adagrad"])
def test_a_step_is_that_of_the_class_in_torch(name):
    found, expected = parameters(), parameters()
    mine = build_optimizer(found, name=name, lr=0.1, weight_decay=0.3)
    theirs = getattr(torch.optim, name)([p for p in expected if p.requires_grad], lr=0.1, weight_decay=0.3)
    for step in range(3):
        for a, b in zip(found, expected, strict=True):
            a.grad, b.grad = (torch.arange(a.numel()).view(a.shape) + float(step) for _ in range(2))
        mine.step()
        theirs.step()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_more_settings_of_the_class_are_passed_on():
    optimizer = build_optimizer(parameters(), name="SGD", lr=0.1, overrides={"momentum": 0.9, "nesterov": True})
    assert optimizer.param_groups[0]["momentum"] == 0.9 and optimizer.param_groups[0]["nesterov"]
    assert build_optimizer(parameters(), lr=0.1, overrides={"betas": [0.5, 0.6]}).param_groups[0]["betas"] == (0.5, 0.6)


@pytest.mark.parametrize("setting", ["foreach", "fused"])
@pytest.mark.parametrize("value", [True, False])
def test_the_user_may_choose_how_the_update_is_run(setting, value):
    optimizer = build_optimizer(parameters(), lr=0.1, overrides={setting: value})
    assert optimizer.param_groups[0][setting] is value


def test_an_unknown_setting_is_named_with_the_known_ones():
    with pytest.raises(UserError, match="torch.optim.AdamW takes no 'momentum'; it takes .*'betas'"):
        build_optimizer(parameters(), lr=0.1, overrides={"momentum": 0.9})


def test_an_unknown_class_and_a_missing_package_are_named():
    with pytest.raises(UserError, match="optim.optimizer=Adamw is not an optimiser of torch.optim"):
        build_optimizer(parameters(), name="Adamw", lr=0.1)
    with pytest.raises(UserError, match="optim.optimizer=lr_scheduler is not an optimiser"):
        build_optimizer(parameters(), name="lr_scheduler", lr=0.1)
    with pytest.raises(UserError, match="optim.optimizer_impl=no_such_package needs a package"):
        build_optimizer(parameters(), module="no_such_package", lr=0.1)
