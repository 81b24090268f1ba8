"""What a model is: its sizes, its stream and its sampler, as a preset states them."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self, get_args, get_origin, get_type_hints

from vidc.exporters.text_encoder.config import TextEncoderConfig
from vidc.plugins.errors import UsageError, nearest

LATENT_STRIDE = 8
"""Pixels to a latent, in height and in width, of the Wan VAE."""


def _coerce(value: Any, kind: Any) -> Any:
    """``value`` as ``kind`` if it is one, else None; lists become tuples, ints become floats."""
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if not isinstance(value, list | tuple):
            return None
        items = [_coerce(v, item) for v in value]
        return None if any(v is None for v in items) else tuple(items)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, bool) and kind is not bool:
        return None
    return value if isinstance(value, kind) else None


@dataclass(frozen=True)
class Table:
    """A dataclass that reads itself from a TOML table and refuses what it does not know."""

    @classmethod
    def from_table(cls, table: Mapping[str, Any], name: str) -> Self:
        """The table ``[name]`` as this class.

        Raises:
            UsageError: ``VIDC-CONFIG-SETTING`` for an unknown, missing or mistyped setting.
        """
        kinds = get_type_hints(cls)
        known = {field.name: field for field in fields(cls)}
        for key in table:
            if key not in known:
                raise UsageError(
                    "VIDC-CONFIG-SETTING", f"no setting {name}.{key}", nearest(key, known)
                )
        values = {}
        for key, field in known.items():
            if key not in table:
                if field.default is MISSING:
                    raise UsageError(
                        "VIDC-CONFIG-SETTING",
                        f"setting {name}.{key} is missing",
                        f"add {key} = … to [{name}]",
                    )
                continue
            values[key] = _coerce(table[key], kinds[key])
            if values[key] is None:
                raise UsageError(
                    "VIDC-CONFIG-SETTING",
                    f"{name}.{key} = {table[key]!r} is not of type {field.type}",
                    f"set {name}.{key} to a {field.type}",
                )
        return cls(**values)

    def require(self, condition: bool, message: str, hint: str) -> None:
        """Refuses sizes that cannot work together."""
        if not condition:
            raise UsageError("VIDC-CONFIG-SIZES", message, hint)


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
        for name in ("dim", "ffn_dim", "heads", "layers", "freq_dim", "text_len", "text_dim"):
            self.require(
                getattr(self, name) > 0, f"model.{name} must be positive", "set it above 0"
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
            len(self.patch) == 3 and self.patch[0] == 1 and min(self.patch) > 0,
            f"model.patch = {list(self.patch)} is not [1, height, width]",
            "causal blocks need patches of one frame",
        )

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.dim // self.heads


@dataclass(frozen=True)
class VaeConfig(Table):
    """Sizes of a Wan VAE, with the per-channel statistics that normalise its latents."""

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
        self.require(
            len(self.latents_mean) == len(self.latents_std) == self.z_dim,
            f"vae.latents_mean and vae.latents_std must hold z_dim = {self.z_dim} values",
            "copy both from the VAE's config",
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
        for name in ("height", "width", "window", "block", "batch"):
            self.require(
                getattr(self, name) > 0, f"stream.{name} must be positive", "set it above 0"
            )
        self.require(self.sink >= 0, "stream.sink is negative", "set it to 0 or more")
        self.require(
            self.window >= self.sink + self.block,
            f"stream.window = {self.window} is smaller than sink + block = "
            f"{self.sink} + {self.block}",
            f"set window to at least {self.sink + self.block}",
        )


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
            and self.steps[0] <= 1000
            and self.steps[-1] > 0,
            f"sampler.steps = {list(self.steps)} must fall from at most 1000 to above 0",
            "use steps such as [1000, 750, 500, 250]",
        )
        self.require(self.shift > 0, f"sampler.shift = {self.shift} must be positive", "5.0")


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
