"""Inputs of a session that are refused, and the caller's torch state, which changes nothing."""

import threading
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from small_stream import SPEC, begun, embeds, equal, noise, played, small_bundle

from vidc.runtime import UsageError, VidcError
from vidc.runtime.inputs import is_finite


class Subclass(torch.Tensor):
    pass


def without_memory(x):
    freed = x.clone()
    freed.untyped_storage().resize_(0)
    return freed


LATENT = torch.zeros(1, SPEC.block, *SPEC.latent)
GIVEN = {
    "prompt": (embeds(), lambda s, x: s.prompt(x), "VIDC-PROMPT-SHAPE"),
    "switch": (embeds(), lambda s, x: s.switch_prompt(x), "VIDC-PROMPT-SHAPE"),
    "embeds": (embeds(), lambda s, x: s.embeds(x), "VIDC-PROMPT-SHAPE"),
    "noise": (noise(), lambda s, x: s.step(x), "VIDC-SESSION-NOISE"),
    "generate": (noise(), lambda s, x: s.generate(x), "VIDC-SESSION-NOISE"),
    "latent": (LATENT, lambda s, x: s.decode(x), "VIDC-SESSION-LATENT"),
    "remember": (LATENT, lambda s, x: s.remember(x), "VIDC-SESSION-LATENT"),
}
WRONG = {
    "bytes": lambda x: b"a fox",
    "number": lambda x: 1.0,
    "list": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "empty": lambda x: x[:0],
    "scalar": lambda x: x.sum(),
    "shape": lambda x: x[..., :-1],
    "more": lambda x: x[None],
    "integers": lambda x: x.long(),
    "bool": lambda x: x > 0,
    "complex": lambda x: x.to(torch.complex64),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "gradient": lambda x: x.clone().requires_grad_(),
    "parameter": lambda x: torch.nn.Parameter(x),
    "subclass": lambda x: x.as_subclass(Subclass),
    "freed": without_memory,
}


def code(call, *arguments):
    with pytest.raises(VidcError) as caught:
        call(*arguments)
    assert caught.value.hint
    return caught.value.code


@pytest.mark.filterwarnings("ignore")  # Torch deprecates quantized tensors.
@pytest.mark.parametrize("given", GIVEN)
def test_tensors_of_any_wrong_kind_are_coded_and_change_nothing(given):
    good, call, expected = GIVEN[given]
    bundle = small_bundle()
    session = begun(bundle, blocks=2)
    for kind, wrong in WRONG.items():
        assert code(call, session, wrong(good)) == expected, kind
    if given not in ("noise", "generate"):
        assert code(call, session, None) == expected
    if given in ("noise", "latent"):
        assert code(call, session, "a fox") == expected
    assert equal(played(session), played(begun(bundle, blocks=2)))


@pytest.mark.parametrize("given", GIVEN)
def test_values_that_are_not_finite_are_refused_and_change_nothing(given):
    good, call, _ = GIVEN[given]
    bundle = small_bundle()
    session = begun(bundle, blocks=2)
    for value, dtype in (
        (torch.nan, torch.float32), (torch.inf, torch.bfloat16), (-torch.inf, torch.float16),
        (1e300, torch.float64),
    ):  # fmt: skip
        for index in (0, -1):
            bad = good.to(dtype, copy=True)
            bad.view(-1)[index] = value
            assert code(call, session, bad) == "VIDC-SESSION-FINITE"
    assert equal(played(session), played(begun(bundle, blocks=2)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_finite_means_every_value(dtype):
    for size in (1, 7, 64, 4097):
        for index in {0, size // 2, size - 1}:
            values = torch.full((size,), torch.finfo(dtype).max, dtype=dtype)
            values[::2] *= -1
            assert is_finite(values)
            for bad in (torch.nan, torch.inf, -torch.inf):
                values[index] = bad
                assert not is_finite(values)


def test_any_layout_and_float_dtype_of_a_dense_tensor_is_taken():
    bundle = small_bundle()
    turned = noise().permute(5, 4, 3, 2, 1, 0).contiguous().permute(5, 4, 3, 2, 1, 0)
    wanted = begun(bundle).step(noise())
    for same in (turned, noise().double()):
        assert torch.equal(begun(bundle).step(same), wanted)
    one = torch.ones(1).expand(SPEC.noise_shape)
    assert torch.equal(begun(bundle).step(one), begun(bundle).step(one.half()))


NUMBERS = (None, "1", b"1", 1.0, True, np.bool_(True), np.float32(1), -1, 2**63, 10**400, 1j, [1],
           np.int64(-1), torch.tensor(1), torch.nan)  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: f"{type(n).__name__}-{str(n)[:8]}")
def test_seeds_and_blocks_of_any_wrong_kind_are_coded(number):
    bundle = small_bundle()
    session = begun(bundle, seed=4)
    for call in (bundle.session, session.reset, session.stream):
        assert code(call, number) == "VIDC-SESSION-NUMBER"
    assert equal(played(session), played(begun(bundle, seed=4)))


@pytest.mark.parametrize("name", [5, b"wan", ["wan"], "", "x" * 10**6, torch.zeros(2)])
def test_decoders_of_any_wrong_kind_are_coded(name):
    assert code(small_bundle().session, 0, name) == "VIDC-SESSION-DECODER"


def test_integers_of_numpy_are_seeds():
    bundle = small_bundle()
    for seed in (np.int64(7), np.uint8(7)):
        assert equal(played(begun(bundle, seed=seed)), played(begun(bundle, seed=7)))
    begun(bundle, seed=2**63 - 1).step()
    assert len([*begun(bundle).stream(np.int32(2))]) == 2


@pytest.mark.parametrize("frames", [None, "frames", np.zeros(1), torch.zeros(1, device="meta")])
def test_frames_to_fetch_are_a_tensor_of_the_device(frames):
    assert code(small_bundle().session().fetch, frames) == "VIDC-SESSION-FRAMES"


def test_what_is_closed_cannot_be_entered_or_go_on():
    bundle = small_bundle()
    session = begun(bundle)
    stream, fetched = session.stream(blocks=2), session.fetch(session.step())
    next(stream)
    session.close()
    assert fetched().dtype == torch.uint8
    assert code(next, stream) == "VIDC-SESSION-CLOSED"
    assert code(session.__enter__) == "VIDC-SESSION-CLOSED"
    bundle.close()
    assert code(bundle.__enter__) == "VIDC-BUNDLE-CLOSED"


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Zeros(torch.overrides.TorchFunctionMode):
    """Makes every function return zeros."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 0 if isinstance(result, torch.Tensor) else result


STATES = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "device": lambda: torch.device("meta"),
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
    "no grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": deterministic,
    "mode": Zeros,
}


@pytest.mark.parametrize("state", [*STATES, "all"])
def test_the_callers_torch_state_changes_nothing(state):
    entered = [STATES[state]] if state != "all" else [*STATES.values()]
    bundle, given, prompts = small_bundle(), noise(), (embeds(1), embeds(2))

    def results(session):
        session.prompt(prompts[0])
        frames = [*session.stream(blocks=2)]
        session.switch_prompt(prompts[1])
        return [*frames, session.step(), session.step(given), session.latents]

    outside = bundle.session(seed=2)
    expected = results(outside)
    with ExitStack() as stack:
        for enter in entered:
            stack.enter_context(enter())
        inside = bundle.session(seed=2)
        outside.reset(seed=2)
        found = [results(session) for session in (inside, outside)]
    inside.reset(seed=2)
    for these in (*found, results(inside)):
        assert equal(these, expected)
    for tensor in found[0]:
        assert not tensor.is_inference()
        (tensor * torch.ones(1, requires_grad=True)).sum().backward()
        tensor.zero_()


BF16_PRODUCTS = {
    "matmuls": lambda: torch.set_float32_matmul_precision("medium"),
    "a backend's matmuls": lambda: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    "convolutions": lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
    "all": lambda: setattr(torch.backends, "fp32_precision", "bf16"),
}


def float32_precisions():
    backends = torch.backends
    parts = (backends, backends.cuda.matmul, backends.mkldnn.matmul, backends.mkldnn.conv)
    return [part.fp32_precision for part in parts]


@pytest.mark.parametrize("setting", BF16_PRODUCTS)
def test_engines_compute_in_float32_whatever_the_caller_chose(setting):
    bundle = small_bundle()
    sessions, seen = [begun(bundle), begun(bundle)], []
    bundle.engines["denoise"].before = lambda: seen.extend(float32_precisions())
    try:
        BF16_PRODUCTS[setting]()
        chosen = float32_precisions()
        assert "bf16" in chosen
        threads = [threading.Thread(target=played, args=(s, 20)) for s in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert float32_precisions() == chosen
    finally:
        torch.backends.fp32_precision = "none"
        torch.backends.mkldnn.conv.fp32_precision = "none"
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
    assert seen
    assert set(seen) <= {"none", "ieee"}


def test_the_callers_torch_state_is_left_as_it_was():
    session = begun(small_bundle())
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        session.step()
        with pytest.raises(UsageError):
            session.reset(-1)
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
