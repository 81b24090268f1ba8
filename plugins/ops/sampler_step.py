"""Operator ``sampler_step``: a step of a clip's sampler, from predictions to the next input.

It combines the predictions by guidance, updates the latent, and writes the next step's inputs of
the network, all in float32.
"""

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define

VECTOR = 4
"""Elements that a thread of the kernel has: 16 bytes."""
COEFFICIENTS = 5
"""Columns of the table: timestep, keep, change, fresh, scale."""
_CHECKS = Checks("sampler_step")


def sampler_step_reference(
    velocity: Tensor,
    noise: Tensor | None,
    guidance: Tensor,
    table: Tensor,
    progress: Tensor,
    latent: Tensor,
    sample: Tensor,
    timestep: Tensor,
) -> None:
    """Takes a step: ``latent = keep latent + change v + fresh noise``, ``sample = scale latent``.

    With two predictions, ``v = u + g (c - u)``, where g is the guidance scale of the frame. Every
    product and every sum is rounded to float32, so all implementations give the same bits. After
    the last step, ``timestep`` and the step's number are those of the first.

    Args:
        velocity: predictions, float32 ``[N, T, C, h, w]``. N is 2 with guidance: unconditional u,
            conditional c; or 1. ``C h w`` is a multiple of 4.
        noise: standard normal noise, float32 ``[S, 1, T, C, h, w]``, an entry for each step. A step
            adds the entry of the step after it, and the last step that of the first. None adds no
            noise.
        guidance: guidance scale of each frame, float32 ``[T]``.
        table: coefficients of every step, float32 ``[S, 5]``: timestep, keep, change, fresh and
            scale, as in ``vidc.runtime.programs.sampler.SamplerStep``.
        progress: int64 ``[2]``, updated: number of the step, from 0 to S - 1, and a counter of the
            kernel, which is 0 between calls. The kernel writes nothing if the number is not in that
            range.
        latent: float32 ``[1, T, C, h, w]``, updated.
        sample: float32 ``[N, T, 2 C, h, w]``; the first C channels are written for every N.
        timestep: float32 ``[1]``, set to the next step's.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(velocity, noise, guidance, table, progress, latent, sample, timestep)
    step = progress[:1]
    following = (step + 1) % len(table)
    _, keep, change, fresh, scale = table.index_select(0, step)[0].unbind()
    if len(velocity) == 2:
        unconditional, conditional = velocity.split(1)
        guidance = guidance.view(1, -1, 1, 1, 1)
        velocity = unconditional + guidance * (conditional - unconditional)
    latent.mul_(keep).add_(velocity * change)
    if noise is not None:
        latent.add_(noise.index_select(0, following)[0] * fresh)
    sample[:, :, : latent.shape[2]] = latent * scale
    timestep.copy_(table.index_select(0, following)[0, :1])
    step.copy_(following)


def _check(
    velocity: Tensor,
    noise: Tensor | None,
    guidance: Tensor,
    table: Tensor,
    progress: Tensor,
    latent: Tensor,
    sample: Tensor,
    timestep: Tensor,
) -> None:
    _CHECKS.shape("velocity", velocity, ("N", "T", "C", "h", "w"))
    batch, frames, *frame = velocity.shape
    _CHECKS.that(batch in (1, 2), "velocity", "1 or 2 predictions", batch)
    elements = frame[0] * frame[1] * frame[2]
    _CHECKS.that(elements % VECTOR == 0, "velocity", f"C h w a multiple of {VECTOR}", elements)
    _CHECKS.shape("table", table, ("S", COEFFICIENTS))
    given = {"velocity": velocity}
    if noise is not None:
        _CHECKS.shape("noise", noise, (len(table), 1, frames, *frame))
        given["noise"] = noise
    _CHECKS.shape("guidance", guidance, (frames,))
    _CHECKS.shape("progress", progress, (2,))
    _CHECKS.shape("latent", latent, (1, frames, *frame))
    _CHECKS.shape("sample", sample, (batch, frames, 2 * frame[0], *frame[1:]))
    _CHECKS.shape("timestep", timestep, (1,))
    given |= {
        "guidance": guidance, "table": table, "latent": latent, "sample": sample,
        "timestep": timestep,
    }  # fmt: skip
    for name, tensor in given.items():
        _CHECKS.dtype(name, tensor, (torch.float32,))
    _CHECKS.dtype("progress", progress, (torch.int64,))


sampler_step = define(
    "sampler_step(Tensor velocity, Tensor? noise, Tensor guidance, Tensor table,"
    " Tensor(a!) progress, Tensor(b!) latent, Tensor(c!) sample, Tensor(d!) timestep) -> ()",
    sampler_step_reference,
    _check,
)
