"""What a model is: its sizes, its stream and its sampler, as a preset states them."""

from dataclasses import dataclass

from vidc.exporters.table import MAX_SIZE, Table
from vidc.exporters.text_encoder.config import TextEncoderConfig

LATENT_STRIDE = 8
"""Pixels to a latent, in height and in width, of the Wan VAE."""
TRAINING_STEPS = 1000
"""Timesteps of pure noise; a step of the sampler is one of them."""
MAX_SHIFT = 1000
"""Far above any real shift; beyond it, and below its inverse, steps would fall together."""


@dataclass(frozen=True)
class TransformerConfig(Table):
    """Sizes of a causal Wan transformer."""

    dim: int
    ffn_dim: int
    heads: int
    layers: int
    freq_dim: int = 256
    text_len: int = 512
    text_dim: int = 4096
    channels: int = 16
    patch: tuple[int, int, int] = (1, 2, 2)
    eps: float = 1e-6

    def __post_init__(self) -> None:
        self.require_sizes(
            "model",
            *("dim", "ffn_dim", "heads", "layers", "freq_dim", "text_len", "text_dim"),
            *("channels", "patch"),
        )
        self.require(
            self.dim % self.heads == 0 and self.head_dim % 2 == 0 and self.head_dim >= 6,
            f"model.dim = {self.dim} does not split into {self.heads} heads of an even size of at "
            "least 6",
            "choose dim as a multiple of 2 x heads",
        )
        self.require(
            self.freq_dim % 2 == 0, f"model.freq_dim = {self.freq_dim} is odd", "choose an even one"
        )
        self.require(
            len(self.patch) == 3 and self.patch[0] == 1,
            f"model.patch = {list(self.patch)} is not [1, height, width]",
            "causal blocks need patches of one frame",
        )
        self.require(
            0 < self.eps < 1,
            f"model.eps = {self.eps} does not lie between 0 and 1",
            "set it to the model's own, such as 1e-6",
        )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads


@dataclass(frozen=True)
class VaeConfig(Table):
    """Sizes of a Wan VAE, with the per-channel statistics that normalize its latents."""

    base_dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    res_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)
    latents_mean: tuple[float, ...] = (
        -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
        0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
    )  # fmt: skip
    latents_std: tuple[float, ...] = (
        2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
        3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
    )  # fmt: skip

    def __post_init__(self) -> None:
        self.require_sizes("vae", "base_dim", "z_dim", "dim_mult", "res_blocks")
        self.require(self.base_dim > 1, "vae.base_dim = 1 cannot be halved", "set it to 2 or more")
        self.require(
            len(self.latents_mean) == len(self.latents_std) == self.z_dim,
            f"vae.latents_mean and vae.latents_std must hold z_dim = {self.z_dim} values",
            "copy both from the VAE's config",
        )
        self.require(
            min(self.latents_std) > 0,
            f"vae.latents_std holds {min(self.latents_std)}, which is no standard deviation",
            "copy it from the VAE's config",
        )
        self.require(
            len(self.dim_mult) == 4 and self.temporal_downsample == (False, True, True),
            f"vae.dim_mult = {list(self.dim_mult)}, vae.temporal_downsample = "
            f"{list(self.temporal_downsample)}: not a stride of 8 in space and 4 in time",
            "use four multipliers and [false, true, true]",
        )


@dataclass(frozen=True)
class StreamConfig(Table):
    """A stream's static sizes: pixels, batch, and frames in latents."""

    height: int
    width: int
    window: int
    sink: int
    block: int
    batch: int = 1

    def __post_init__(self) -> None:
        self.require_sizes("stream", "height", "width", "window", "block", "batch")
        self.require(self.sink >= 0, "stream.sink is negative", "set it to 0 or more")
        self.require(
            self.window >= self.sink + self.block,
            f"stream.window = {self.window} is smaller than sink + block = "
            f"{self.sink} + {self.block}",
            f"set window to at least {self.sink + self.block}",
        )

    @property
    def aligned(self) -> bool:
        """Whether no block straddles the sink's end or the ring's wrap."""
        return self.sink % self.block == 0 and (self.window - self.sink) % self.block == 0


@dataclass(frozen=True)
class SamplerConfig(Table):
    """Flow-matching steps of 1000, before the shift, and the timestep of the clean pass."""

    steps: tuple[int, ...] = (1000, 750, 500, 250)
    shift: float = 5.0
    context_timestep: float = 0.0

    def __post_init__(self) -> None:
        self.require(
            len(self.steps) > 0
            and list(self.steps) == sorted(set(self.steps), reverse=True)
            and self.steps[0] <= TRAINING_STEPS
            and self.steps[-1] > 0,
            f"sampler.steps = {list(self.steps)} must fall from at most {TRAINING_STEPS} to above "
            "0",
            "use steps such as [1000, 750, 500, 250]",
        )
        self.require(
            1 / MAX_SHIFT <= self.shift <= MAX_SHIFT,
            f"sampler.shift = {self.shift} does not lie between {1 / MAX_SHIFT} and {MAX_SHIFT}",
            "set it to the model's own, such as 5.0",
        )
        self.require(
            0 <= self.context_timestep <= TRAINING_STEPS,
            f"sampler.context_timestep = {self.context_timestep} does not lie between 0 and "
            f"{TRAINING_STEPS}",
            "set it to the model's own, such as 0.0",
        )


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides the graphs of one streaming video model."""

    transformer: TransformerConfig
    vae: VaeConfig
    stream: StreamConfig
    sampler: SamplerConfig
    text_encoder: TextEncoderConfig | None = None

    def __post_init__(self) -> None:
        stream, patch = self.stream, self.transformer.patch
        for name, size, stride in (
            ("height", stream.height, LATENT_STRIDE * patch[1]),
            ("width", stream.width, LATENT_STRIDE * patch[2]),
        ):
            stream.require(
                size % stride == 0,
                f"stream.{name} = {size} does not divide by {stride} (VAE stride x patch)",
                f"use {max(stride, size // stride * stride)} or {(size // stride + 1) * stride}",
            )
        stream.require(
            self.frame_tokens <= MAX_SIZE,
            f"stream.height x stream.width = {stream.height} x {stream.width} gives a frame "
            f"{self.frame_tokens} tokens, more than {MAX_SIZE}",
            "choose smaller ones",
        )
        stream.require(
            self.transformer.channels == self.vae.z_dim,
            f"model.channels = {self.transformer.channels} but vae.z_dim = {self.vae.z_dim}",
            "the transformer and the VAE must share their latents",
        )

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of a latent frame."""
        return self.stream.height // LATENT_STRIDE, self.stream.width // LATENT_STRIDE

    @property
    def frame_tokens(self) -> int:
        """Tokens of one latent frame."""
        height, width = self.latent_size
        return height // self.transformer.patch[1] * (width // self.transformer.patch[2])

    @property
    def recache_frames(self) -> tuple[int, ...]:
        """Latent frames that a prompt switch may have to recompute, each a static variant.

        A switch after n <= window frames recomputes all of them; a later one the window less
        the sink, which stays. A block's worth is ``kv_update`` itself.
        """
        stream = self.stream
        filling = set(range(stream.block, stream.window + 1, stream.block))
        return tuple(sorted((filling | {stream.window - stream.sink}) - {stream.block}))
