import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.bench import clock
from vidc.compiler.bench.kernels import kernels, kind
from vidc.compiler.bench.profile import Rate
from vidc.compiler.bench.text import rate
from vidc.compiler.bench.work import Kind

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_bias_TNT", Kind.PRODUCT),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", Kind.PRODUCT),
        ("triton_tem_fused_addmm_gelu_3", Kind.PRODUCT),
        ("aten::addmm", Kind.PRODUCT),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", Kind.ATTENTION),
        ("kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90", Kind.ATTENTION),
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", Kind.CONVOLUTION),
        ("triton_tem_fused_convolution_12", Kind.CONVOLUTION),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<...>", Kind.COPY),
        ("Memcpy DtoD (Device -> Device)", Kind.COPY),
        ("triton_poi_fused_add_mul_7", Kind.ELEMENTWISE),
        ("triton_poi_fused_convolution_silu_2", Kind.ELEMENTWISE),
        ("triton_red_fused_addmm_native_layer_norm_5", Kind.ELEMENTWISE),
        ("vidc_ring_write_kernel", Kind.COPY),
        ("void vidc::qk_norm_rope_ring_write_kernel<...>", Kind.ELEMENTWISE),
        ("void vidc::gelu_quantize_kernel<...>", Kind.ELEMENTWISE),
        ("void at::native::vectorized_elementwise_kernel<4, ...>", Kind.ELEMENTWISE),
        ("aten::arange", Kind.OTHER),
    ],
)
def test_kernels_are_told_apart_by_their_names(name, expected):
    assert kind(name) is expected


def test_the_kernels_of_a_work_are_counted_for_each_call():
    a = torch.randn(64, 64)

    def work():
        for _ in range(3):
            torch.mm(a, a)
        a.clone()

    found = {kernel.name: kernel for kernel in kernels(work, CPU, times=4)}
    assert found["aten::mm"].calls == 3
    assert found["aten::mm"].kind is Kind.PRODUCT
    assert found["aten::mm"].ms > 0
    assert found["aten::clone"].calls == 1
    times = [kernel.ms for kernel in kernels(work, CPU, times=1)]
    assert times == sorted(times, reverse=True)


@given(st.floats(0, 1e6), st.none() | st.floats(1e-3, 1e6))
def test_a_share_is_never_more_than_everything(value, peak):
    found = Rate.of(value, peak)
    assert found.value == value
    assert (found.share is None) == (peak is None or value > peak)
    assert found.share is None or 0 <= found.share <= 1
    shown, share = rate(found)
    assert float(shown) == pytest.approx(value, rel=0.01)
    assert (share == "") == (found.share is None)


def test_rates_read_well():
    assert rate(Rate(4124.4, 0.859)) == ("4124", "86 %")
    assert rate(Rate(8.6, None)) == ("8.60", "")


def test_unknown_work_has_no_rate():
    assert rate(None) == ("", "")


def test_peaks_are_work_over_time(monkeypatch):
    monkeypatch.setattr(clock, "_SIDES", {"cpu": (16, 32)})
    monkeypatch.setattr(clock, "_COPIED", {"cpu": 1000})
    done = []

    def seconds(work, device):
        work()
        done.append(device)
        return 1e-6 * len(done)

    monkeypatch.setattr(clock, "_seconds", seconds)
    assert clock.matmul_tflops(torch.float32, CPU) == pytest.approx(
        max(2 * 16**3 / 1e-6, 2 * 32**3 / 2e-6) / 1e12
    )
    assert clock.copy_gbps(CPU) == pytest.approx(2 * 1000 / 3e-6 / 1e9)
