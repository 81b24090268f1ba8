"""Muon and Adam against what they are defined as."""

import pytest
import torch
from demo_model.training.networks import new_text_encoder, new_transformer, new_vae
from demo_model.training.optimizer import MuonAdam, optimizer_for, orthogonal
from torch import nn


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (16, 16)])
def test_an_update_has_singular_values_near_one(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    found = orthogonal(matrices)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    values = torch.linalg.svdvals(found)
    # A value that is nearly nothing beside the others stays below.
    assert (values[s > 0.05 * s.amax(1, keepdim=True)] > 0.5).all()
    assert (values < 1.3).all()
    # The singular vectors are the same: their products with the update are diagonal.
    inner = u.mT @ found @ v.mT
    off = inner - torch.diag_embed(torch.diagonal(inner, dim1=1, dim2=2))
    assert off.abs().max() < 1e-4


def test_vectors_take_the_steps_of_adam():
    torch.manual_seed(1)
    ours, theirs = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    optimizer = MuonAdam([], [ours])
    reference = torch.optim.Adam([theirs], lr=0.1, betas=(0.9, 0.98))
    for _ in range(5):
        gradient = torch.randn(5)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()
        reference.step()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_a_matrix_moves_as_far_as_adam_would_move_it():
    weight = nn.Parameter(torch.zeros(64, 32, 3, 3))
    optimizer = MuonAdam([weight], [])
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()
    assert float(weight.detach().square().mean().sqrt()) == pytest.approx(0.002, rel=0.3)


def test_what_has_no_gradient_stays():
    with_one, without = (nn.Parameter(torch.ones(4, 4)) for _ in range(2))
    optimizer = MuonAdam([with_one, without], [])
    with_one.grad = torch.eye(4)
    optimizer.param_groups[0]["lr"] = 0.1
    optimizer.step()
    assert torch.equal(without, torch.ones(4, 4))
    assert not torch.equal(with_one, torch.ones(4, 4))


def test_every_parameter_is_optimized_and_maps_by_muon(sizes):
    for make in (new_transformer, new_vae, new_text_encoder):
        network = make(sizes)
        optimizer = optimizer_for(network)
        held = [p for group in optimizer.param_groups for p in group["params"]]
        assert len(held) == len({id(p) for p in held}) == len(list(network.parameters()))
        by_muon = {id(p) for p in optimizer.param_groups[0]["params"]}
        names = {name for name, p in network.named_parameters() if id(p) in by_muon}
        share = sum(p.numel() for p in optimizer.param_groups[0]["params"])
        assert share > 0.7 * sum(p.numel() for p in network.parameters())
        assert not any("norm" in name or "gamma" in name or "bias" in name for name in names)
