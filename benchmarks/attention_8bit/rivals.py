"""Attention kernels of other projects on the same inputs, if the machine has them."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attention_8bit.inputs import Inputs
from attention_8bit.timing import Contender
from vidc.plugins.quantize import LARGEST, quantize

E4M3 = torch.float8_e4m3fn


def rivals(inputs: Inputs, valid_length: int) -> tuple[dict[str, Contender], dict[str, str]]:
    """Rivals that are available, by name, and the reasons why others are not."""
    cut = Inputs(inputs.query, inputs.key[:, :valid_length], inputs.value[:, :valid_length])
    found, missing = {"bf16_cudnn": _bf16_cudnn(cut)}, {}
    for name, make in (
        ("fp8_cudnn", _fp8_cudnn),
        ("bf16_flash_attention_4", _bf16_flash_attention_4),
    ):
        try:
            found[name] = make(cut)
        except Exception as error:  # noqa: BLE001 (Optional, and they can fail in many ways.)
            missing[name] = repr(error)[:300]
    return found, missing


def _bf16_cudnn(inputs: Inputs) -> Contender:
    heads_first = [x.to(torch.bfloat16).transpose(1, 2) for x in vars(inputs).values()]

    def run() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(*heads_first)

    return Contender(run, lambda: run().transpose(1, 2))


def _bf16_flash_attention_4(inputs: Inputs) -> Contender:
    from flash_attn.cute import flash_attn_func

    taken = [x.to(torch.bfloat16).contiguous() for x in vars(inputs).values()]

    def run() -> Tensor:
        found = flash_attn_func(*taken)
        return found[0] if isinstance(found, tuple) else found

    return Contender(run, run)


def _fp8_cudnn(inputs: Inputs) -> Contender:
    """cuDNN's own FP8 attention, through its frontend, with a scale for each tensor.

    It gives FP8 too. Its scale is that of the largest output, which costs nothing here.
    """
    import cudnn

    batch, tokens, heads, head_dim = inputs.query.shape
    device = inputs.query.device
    scales = {
        name: x.abs().amax() / LARGEST[E4M3]
        for name, x in zip("qkv", vars(inputs).values(), strict=True)
    }
    given = {
        name: quantize(x, scales[name], E4M3).contiguous().transpose(1, 2)
        for name, x in zip("qkv", vars(inputs).values(), strict=True)
    }
    # A mean of values is no larger than the largest value.
    output_scale = scales["v"]
    output = torch.empty(batch, tokens, heads, head_dim, dtype=E4M3, device=device).transpose(1, 2)

    def scalar(value: Tensor | float) -> Tensor:
        return torch.full((1, 1, 1, 1), float(value), device=device)

    numbers = {
        **{f"descale_{name}": scalar(scale) for name, scale in scales.items()},
        "descale_s": scalar(1 / 256),
        "scale_s": scalar(256),
        "scale_o": scalar(1 / output_scale),
    }
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(
        io_data_type=cudnn.data_type.FP8_E4M3,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )

    def declared(name: str, x: Tensor, kind: Any) -> Any:
        return graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=kind)

    nodes = {name: declared(name, x, cudnn.data_type.FP8_E4M3) for name, x in given.items()}
    nodes |= {name: declared(name, x, cudnn.data_type.FLOAT) for name, x in numbers.items()}
    o, _, amax_s, amax_o = graph.sdpa_fp8(
        **nodes, attn_scale=1 / math.sqrt(head_dim), use_causal_mask=False, generate_stats=False
    )
    shape, stride = list(output.shape), list(output.stride())
    o.set_output(True).set_dim(shape).set_stride(stride).set_data_type(cudnn.data_type.FP8_E4M3)
    largest = {"amax_s": scalar(0), "amax_o": scalar(0)}
    for node in (amax_s, amax_o):
        node.set_output(True).set_dim([1] * 4).set_stride([1] * 4)
        node.set_data_type(cudnn.data_type.FLOAT)
    graph.build([cudnn.heur_mode.A])
    workspace = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=device)
    tensors = {nodes[name]: x for name, x in (given | numbers).items()}
    tensors |= {o: output, amax_s: largest["amax_s"], amax_o: largest["amax_o"]}

    def run() -> Tensor:
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(tensors, workspace, handle=handle)
        return output

    return Contender(run, lambda: run().transpose(1, 2).float() * output_scale)
