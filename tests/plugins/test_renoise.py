import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import draw, rounded_once

from vidc.plugins.renoise import renoise

SHAPE = (1, 3, 4, 5, 7)


def arguments(shape=SHAPE, seed=1, size=1.0):
    tensor = draw(seed)
    return [tensor(*shape, deviation=size) for _ in range(3)]


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 5), seed=st.integers(0, 99),
    size=st.sampled_from([1e-3, 1.0, 1e4]), sigma=st.floats(0, 1), next_sigma=st.floats(0, 1),
)  # fmt: skip
def test_the_next_steps_latent(shape, seed, size, sigma, next_sigma):
    latent, flow, noise = arguments(shape, seed, size)
    clean = latent.double() - sigma * flow.double()
    wanted = (1 - next_sigma) * clean + next_sigma * noise.double()
    renoise(latent, flow, noise, sigma, next_sigma)
    rounded_once(latent, wanted, slack=1e-6 * size * 5)


def test_it_is_what_a_session_does():
    latent, flow, noise = arguments()
    wanted = latent.clone()
    wanted.sub_(flow, alpha=0.9375)
    wanted.lerp_(noise, 0.8333)
    renoise(latent, flow, noise, 0.9375, 0.8333)
    assert torch.equal(latent, wanted)


def test_the_last_step_leaves_the_clean_latent():
    latent, flow, noise = arguments()
    wanted = latent - 0.625 * flow
    renoise(latent, flow, noise, 0.625, 0.0)
    torch.testing.assert_close(latent, wanted)


def test_it_is_an_operator_as_torch_wants_them():
    torch.library.opcheck(renoise, (*arguments(), 0.75, 0.5))
