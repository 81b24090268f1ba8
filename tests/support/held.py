"""Runs an operator on a device and holds what it returns and writes to formulas in float64."""

import math

import torch
from operators import FP8, ROUNDING, Ring, on, rounded_once, turn
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vidc.plugins.arguments import dtype_name
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.group_norm_silu import group_norm_silu
from vidc.plugins.ops.norm_silu_winograd import norm_silu_winograd
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.sampler_step import sampler_step, sampler_step_reference
from vidc.plugins.ops.temporal_attention import temporal_attention
from vidc.plugins.ops.winograd_tiles import transforms
from vidc.plugins.transposed_values import stored_at

CPU = torch.device("cpu")
LARGEST = {FP8: 448, torch.int8: 127}


def run(operator, taken: dict, device: torch.device):
    """The results and, by name, the arguments afterwards, all on the CPU."""
    given = on(device, taken)
    found = operator(*given.values())
    after = {name: v.cpu() if isinstance(v, Tensor) else v for name, v in given.items()}
    if isinstance(found, Tensor):
        return found.cpu(), after
    return found and tuple(tensor.cpu() for tensor in found), after


def _output(found: Tensor, wanted: Tensor, slack: float, scale: Tensor | None) -> None:
    if scale is not None:
        wanted, slack = (wanted / scale.double()).clamp(-448, 448), slack / scale.item()
    rounded_once(found, wanted, slack)


def gelu(taken: dict, device: torch.device = CPU, operator=gelu_quantize) -> None:
    """``gelu_quantize``."""
    found, _ = run(operator, taken, device)
    x = taken["x"].double()
    wanted = x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if taken["output_mean"] is not None:
        wanted = wanted - taken["output_mean"].double()
    assert dtype_name(found.dtype) == taken["dtype"]
    _output(found, wanted, 1e-6, taken["output_scale"])


def winograd(taken: dict, device: torch.device = CPU, operator=norm_silu_winograd) -> None:
    """``norm_silu_winograd``, frame by frame."""
    (inputs, last, total), _ = run(operator, taken, device)
    past, tile = taken["past"].double(), taken["tile"]
    matrices = transforms(tile)
    frames, slack = taken["m0"].double(), 0.0
    if taken["m1"] is not None:
        m = torch.stack([taken[f"m{i}"].double() for i in range(tile + 2)])
        outputs = torch.tensor([list(map(float, row)) for row in matrices.outputs]).double()
        # Float32 adds what is larger than the result.
        slack = 1e-6 * (outputs.abs() @ m.abs().flatten(1)).max().item()
        made = torch.einsum("ij,j...->i...", outputs, m).unflatten(1, (len(past), -1))
        frames = made.movedim(0, 2).flatten(1, 2)
    for added in (taken["bias"], taken["residual"]):
        frames = frames if added is None else frames + added.double()
    slack += 1e-6 * frames.abs().max().item()
    if taken["keep_sum"]:
        rounded_once(total, frames, slack)
    else:
        assert total.numel() == 0
    length = frames.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
    normed = frames / length * math.sqrt(frames.shape[-1]) * taken["gamma"].double()
    wanted = normed * torch.sigmoid(normed)
    rounding = ROUNDING[torch.float16]
    rounded_once(last, wanted[:, -2:], 3e-6 * wanted.abs().max().item())
    # An input is a sum of activations, each rounded before.
    every = torch.cat([past, wanted], 1)
    length = every.shape[1] - 2
    successive = torch.stack([every[:, i : i + length : tile] for i in range(tile + 2)])
    for found, row in zip(inputs, matrices.inputs, strict=True):
        factors = torch.tensor(list(map(float, row))).double()
        before = torch.einsum("j,j...->...", factors.abs(), successive.abs()).max().item()
        combined = torch.einsum("j,j...->...", factors, successive).flatten(0, 1)
        rounded_once(found, combined, 1.1 * rounding * before + 1e-6)


def group_norm(taken: dict, device: torch.device = CPU, operator=group_norm_silu) -> None:
    """``group_norm_silu``."""
    found, _ = run(operator, taken, device)
    x = taken["x"].double()
    if taken["shift"] is not None:
        x = x + taken["shift"].double()
    grouped = x.unflatten(-1, (taken["groups"], -1))
    mean = grouped.mean((1, 3), keepdim=True)
    variance = (grouped - mean).square().mean((1, 3), keepdim=True)
    length = (variance + taken["eps"]).sqrt()
    normed = ((grouped - mean) / length).flatten(-2) * taken["weight"].double()
    wanted = normed + taken["bias"].double()
    # In float32, a mean square less a squared mean; then a factor and an offset.
    size = (mean.abs() + variance.sqrt()) / length
    error = (2e-6 * (1 + size + size.square())).expand_as(grouped).flatten(-2)
    slack = error * (normed.abs() + taken["weight"].double().abs()) + 1e-6
    if taken["silu"]:
        wanted, slack = wanted * torch.sigmoid(wanted), 1.1 * slack
    rounded_once(found, wanted, slack)


def frames(taken: dict, device: torch.device = CPU, operator=temporal_attention) -> None:
    """``temporal_attention``, whose weights may be rounded to its dtype."""
    found, _ = run(operator, taken, device)
    query, key, value = (taken[name].double().permute(0, 2, 3, 1, 4) for name in taken)
    weights = torch.softmax(query @ key.mT / 8, -1)
    # Half a step of each weight, of the value that it multiplies and of the sum of weights.
    relative = 2.1 * ROUNDING[found.dtype] + 2e-5
    allowed = relative * (weights @ value.abs()) + relative * (weights @ value).abs() + 1e-5
    rounded_once(found, (weights @ value).permute(0, 3, 1, 2, 4), allowed.permute(0, 3, 1, 2, 4))


def sampler(taken: dict, device: torch.device = CPU, operator=sampler_step) -> None:
    """``sampler_step``: near a formula in float64, and the bits of its reference."""
    _, after = run(operator, taken, device)
    step, channels = int(taken["progress"][0]), taken["latent"].shape[2]
    following = (step + 1) % len(taken["table"])
    _, keep, change, fresh, scale = taken["table"][step].tolist()
    *without, velocity = taken["velocity"].double()
    scales = taken["guidance"].double().view(-1, 1, 1, 1)
    for u in without:
        velocity = u + scales * (velocity - u)
    parts = [keep * taken["latent"].double(), change * velocity[None]]
    if taken["noise"] is not None:
        parts.append(fresh * taken["noise"][following].double())
    slack = 1e-6 * sum(part.abs().max().item() for part in parts)
    rounded_once(after["latent"], sum(parts), slack)
    for half in range(len(taken["velocity"])):
        wanted = after["latent"].double()[0] * scale
        rounded_once(after["sample"][half, :, :channels], wanted)
        beside = after["sample"][half, :, channels:]
        assert torch.equal(beside, taken["sample"][half, :, channels:])
    assert torch.equal(after["timestep"], taken["table"][following, :1])
    assert after["progress"].tolist() == [following, 0]
    _, wanted = run(sampler_step_reference, taken, CPU)
    for name in ("latent", "sample", "timestep", "progress"):
        assert torch.equal(after[name], wanted[name]), name


def _rotated(x: Tensor, weight: Tensor, taken: dict) -> tuple[Tensor, Tensor]:
    """Rotated ``[B, T, H, D]`` in float64, and the change by rounding the norm to its dtype."""
    dtype, x = x.dtype, x.double()
    factor = (x.square().mean((-2, -1), keepdim=True) + taken["eps"]).rsqrt()
    unit = x * factor * weight.double().reshape(x.shape[2:])
    pairs = unit.unflatten(-1, (-1, 2)).norm(dim=-1).repeat_interleave(2, -1)
    return turn(unit, taken["cos"], taken["sin"]), (1.02 * ROUNDING[dtype] + 2e-6) * pairs + 1e-7


def _heads(ring: Ring, taken: dict) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = taken["qkv"].unflatten(-1, (3, ring.heads, ring.head_dim)).unbind(2)
    return query, key, value


def _others(ring: Ring, slots: Tensor) -> Tensor:
    kept = torch.ones(ring.window, dtype=torch.bool)
    kept[slots] = False
    return kept


def qkv(
    ring: Ring, taken: dict, device: torch.device = CPU, operator=qk_norm_rope_ring_write
) -> None:
    """``qk_norm_rope_ring_write``: what it writes, and that it writes nothing else."""
    found, after = run(operator, taken, device)
    query, key, value = _heads(ring, taken)
    slots = ring.slots()
    for stored, x, weight in (
        (found, query, "query_weight"),
        (after["key_cache"][:, slots], key, "key_weight"),
    ):
        wanted, slack = _rotated(x, taken[weight], taken)
        excess = (stored.double() - wanted).abs() - slack
        assert (excess <= 1.01 * ROUNDING[found.dtype] * (wanted.abs() + slack)).all()
    assert torch.equal(after["value_cache"][:, slots], value)
    others = _others(ring, slots)
    for name in ("key_cache", "value_cache"):
        assert torch.equal(after[name][:, others], taken[name][:, others])


def _one_step(stored: Tensor, scale: Tensor, wanted: Tensor, slack: Tensor | float = 0.0) -> None:
    """Values of 8 bits from what is wanted, and from what rounding before may have made of it."""
    limit = LARGEST[stored.dtype] * scale
    if stored.dtype is FP8:
        step = ROUNDING[FP8] * (wanted.abs() + slack) + 2.0**-10 * scale
    else:
        step = scale / 2
    found = stored.to(torch.float32).double() * scale
    excess = (found - torch.minimum(torch.maximum(wanted, -limit), limit)).abs() - slack
    assert (excess <= 1.01 * step).all()


def to_8bit(
    ring: Ring, taken: dict, device: torch.device = CPU, operator=qk_norm_rope_ring_write_static
) -> None:
    """``qk_norm_rope_ring_write_static``."""
    (found, query_scale), after = run(operator, taken, device)
    query, key, value = _heads(ring, taken)
    slots, dtype = ring.slots(), taken["key_cache"].dtype

    def scales(name: str) -> Tensor:
        return taken[name].double()[:, None]

    def values(cache: Tensor) -> Tensor:
        if not taken["value_transposed"]:
            return cache
        by_slot = cache.view(torch.int8)[..., stored_at(torch.arange(ring.window))]
        return by_slot.permute(0, 3, 1, 2).contiguous().view(dtype)

    wanted, slack = _rotated(key, taken["key_weight"], taken)
    if taken["key_mean"] is not None:
        wanted = wanted - taken["key_mean"].double()
    _one_step(_at(after["key_cache"], slots), scales("key_scale"), wanted, slack + 1e-6)
    stored = values(after["value_cache"])
    _one_step(_at(stored, slots), scales("value_scale"), value.double(), 1e-9)

    wanted, slack = _rotated(query, taken["query_weight"], taken)
    if taken["quantize_query"]:
        assert found.dtype == dtype
        assert query_scale.shape == (ring.batch, ring.heads, ring.tokens)
        scale = query_scale.double().mT[..., None]
        off = (scale - wanted.abs().amax(-1, keepdim=True) / LARGEST[dtype]).abs()
        assert (off <= slack.amax(-1, keepdim=True) / LARGEST[dtype] + 1e-6 * scale).all()
        _one_step(found, scale, wanted, slack)
    else:
        assert query_scale.shape == (0, ring.heads, ring.tokens)
        off = (found.double() - wanted).abs() - slack
        assert (off <= 1.01 * ROUNDING[found.dtype] * (wanted.abs() + slack)).all()

    if taken["value_transposed"]:
        padding = stored_at(torch.arange(ring.window, after["value_cache"].shape[3]))
        now, before = (of["value_cache"].view(torch.int8)[..., padding] for of in (after, taken))
        assert torch.equal(now, before)
    others = _others(ring, slots)
    for now, before in (
        (after["key_cache"], taken["key_cache"]), (stored, values(taken["value_cache"])),
    ):  # fmt: skip
        assert torch.equal(now.view(torch.int8)[:, others], before.view(torch.int8)[:, others])
    for name in ("key_scale", "value_scale"):
        assert torch.equal(after[name], taken[name])


def _at(cache: Tensor, slots: Tensor) -> Tensor:
    """Slots of ``[B, S, H, D]`` of 8 bits, which PyTorch does not index as FP8."""
    return cache.view(torch.int8)[:, slots].view(cache.dtype)


def attention(
    taken: dict, device: torch.device = CPU, attend=ring_attention_8bit, slack: float = 1e-4
) -> None:
    """``ring_attention_8bit`` where weights are exact, or what ``attend`` makes of its arguments.

    ``slack`` is what rounding weights may add, of the largest output.
    """
    found, _ = run(attend, taken, device)
    slots = taken["key_cache"].shape[1]
    valid = min(max(int(taken["valid_length"]), 1), slots)
    at = stored_at(torch.arange(valid))
    query = taken["query"].double() * taken["query_scale"].double().mT[..., None]
    key = taken["key_cache"].double()[:, :valid] * taken["key_scale"].double()[:, None]
    value = taken["value_cache"].double()[..., at] * taken["value_scale"].double()[..., None]
    wanted = scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.mT)
    wanted = wanted.transpose(1, 2) + taken["value_mean"].double()
    assert found.dtype == getattr(torch, taken["dtype"])
    assert found.is_contiguous()
    _output(found, wanted, slack * wanted.abs().max().item(), taken["output_scale"])
