import held
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import renoise_arguments

from vidc.plugins.renoise import renoise


@given(
    shape=st.tuples(*[st.integers(1, 5)] * 5), seed=st.integers(0, 99),
    size=st.sampled_from([1e-3, 1.0, 1e4]), sigma=st.floats(0, 1), next_sigma=st.floats(0, 1),
)  # fmt: skip
def test_the_next_steps_latent(shape, seed, size, sigma, next_sigma):
    held.renoised(renoise_arguments(shape, seed, size, sigma, next_sigma))


def test_it_is_what_a_session_does():
    taken = renoise_arguments()
    wanted = taken["latent"].clone()
    wanted.sub_(taken["flow"], alpha=taken["sigma"])
    wanted.lerp_(taken["noise"], taken["next_sigma"])
    renoise(**taken)
    assert torch.equal(taken["latent"], wanted)


def test_the_last_step_leaves_the_clean_latent():
    taken = renoise_arguments(next_sigma=0.0)
    wanted = taken["latent"] - taken["sigma"] * taken["flow"]
    renoise(**taken)
    torch.testing.assert_close(taken["latent"], wanted)


def test_it_is_an_operator_as_torch_wants_them():
    torch.library.opcheck(renoise, tuple(renoise_arguments().values()))
