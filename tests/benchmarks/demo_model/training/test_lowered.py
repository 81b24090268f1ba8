"""bf16 copies of weights: what is computed, and whom gradients reach."""

import pytest
import torch
from demo_model.training.lowered import frozen, in_bf16, lowered

from vidc.exporters.parts.causal_wan.network import CausalWan


@pytest.fixture
def network(sizes, model) -> CausalWan:
    copy = CausalWan(sizes.config.transformer)
    copy.load_state_dict(model.state_dict())
    return copy


def embedded(network: CausalWan) -> torch.Tensor:
    times = torch.tensor([[999.0, 250.0]])
    return network.condition_embedder.time(times, network.dtype)[1]


def test_it_is_what_a_bf16_network_computes(network):
    copy = CausalWan(network.config)
    copy.load_state_dict(network.state_dict())
    expected = embedded(copy.bfloat16())
    found = in_bf16(network, embedded)
    assert torch.equal(found, expected)
    assert not torch.equal(found, embedded(network))


def test_gradients_reach_the_weights_themselves(network):
    in_bf16(network, lambda n: embedded(n).square().sum()).backward()
    found = network.condition_embedder.time_proj.weight.grad
    assert found is not None
    lower = found.clone()
    network.zero_grad()
    embedded(network).square().sum().backward()
    exact = network.condition_embedder.time_proj.weight.grad
    assert lower.dtype is torch.float32
    torch.testing.assert_close(lower, exact, rtol=0.05, atol=0.02 * float(exact.abs().max()))
    assert network.proj_out.weight.dtype is torch.float32


def test_a_cpu_takes_the_network_as_it_is(network):
    assert lowered(network, "cpu", lambda n: n) is network
    assert lowered(network, "cuda", lambda n: n.dtype) is torch.bfloat16
    assert frozen(network, "cpu").dtype is torch.float32
    assert frozen(network, "cuda").dtype is torch.bfloat16
