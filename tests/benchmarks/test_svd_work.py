import pytest
import tiny_svd
import torch
from svd_work import BYTES_PER_SECOND, FLOPS_PER_SECOND, Work, clip_calls, work_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def components(svd):
    found = {}
    for part in svd.parts.values():
        found |= part.components(part.network("fp16"))
    return found


def test_counts_what_diffusers_networks_take():
    """diffusers' cross-attention to one token is more: queries, keys and their products."""
    svd = tiny_svd.model("sampler.guidance=[1.0, 1.0]")
    height, width = svd.latent_size
    sample = torch.zeros(1, svd.clip.frames, 8, height, width)
    # torch counts the matmuls of attention, and not a CPU's fused kernel.
    matmuls = sdpa_kernel(SDPBackend.MATH)
    with torch.no_grad(), matmuls, FlopCounterMode(display=False) as counter:
        tiny_svd.unet(svd)(
            sample, torch.tensor(0.5), torch.zeros(1, 1, svd.unet.image_dim), torch.zeros(1, 3)
        )
    by_module = counter.get_flop_counts()
    crossed = sum(
        sum(counts.values()) for name, counts in by_module.items() if name.endswith(".attn2")
    )
    counted = work_of(components(svd)["denoise"]).flops
    fixed = counter.get_total_flops() - crossed
    # The embeddings of ids and of frames are constants of a clip, and belong to no step.
    assert counted < fixed
    assert counted == pytest.approx(fixed, rel=0.02)


def test_decoding_is_counted_for_each_chunk():
    svd = tiny_svd.model()
    calls = clip_calls(svd)
    assert calls == {
        "image_encoder": 1, "vae_encode": 1, "condition_clip": 1, "denoise": 4, "vae_decode": 2
    }  # fmt: skip
    assert clip_calls(tiny_svd.model("clip.low_memory=true"))["denoise"] == 8


def test_an_operator_takes_the_longer_of_computing_and_moving():
    work = Work()
    tensor = torch.empty(8, dtype=torch.float16, device="meta")
    work.add(FLOPS_PER_SECOND, tensor, 3.0)
    work.add(0.0, tensor)
    assert (work.flops, work.bytes) == (FLOPS_PER_SECOND, 32)
    assert work.unfused_s == pytest.approx(1 + 16 / BYTES_PER_SECOND)
