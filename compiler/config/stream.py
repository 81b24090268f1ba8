"""Program and spec of a bundle's manifest, derived from the model."""

from vidc.exporters.config import TRAINING_STEPS, ModelConfig, SamplerConfig
from vidc.runtime.programs.stream import StreamSpec

PROGRAM = "causal_video"


def sigmas(sampler: SamplerConfig) -> tuple[float, ...]:
    """Returns the noise share of each denoising step: ``s k / (1 + (s - 1) k)`` at ``1000 k``.

    The shift ``s`` of flow matching is that of "Scaling Rectified Flow Transformers", 5.3.2.
    """
    shift = sampler.shift
    shares = [step / TRAINING_STEPS for step in sampler.steps]
    return tuple(shift * k / (1 + (shift - 1) * k) for k in shares)


def stream_spec(config: ModelConfig) -> StreamSpec:
    """Returns the stream of a model."""
    stream, transformer = config.stream, config.transformer
    height, width = config.latent_size
    shares = sigmas(config.sampler)
    return StreamSpec(
        batch=stream.batch,
        block=stream.block,
        window=stream.window,
        sink=stream.sink,
        frame_tokens=config.frame_tokens,
        grid=(height // transformer.patch[1], width // transformer.patch[2]),
        latent=(transformer.channels, height, width),
        video=(stream.height, stream.width),
        head_dim=transformer.head_dim,
        text=(transformer.text_len, transformer.text_dim),
        timesteps=tuple(TRAINING_STEPS * share for share in shares),
        sigmas=shares,
        context_timestep=config.sampler.context_timestep,
    )
