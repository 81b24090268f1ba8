"""Family ``causal_video``: block-wise streams of a causal Wan: LongLive, Self-Forcing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vidc.exporters.families.family import Family, FixedWork, LayerKind, Pass, Rollout, TextSource
from vidc.exporters.families.vae_table import CHANNELS, KINDS, WAN, VaeTable
from vidc.exporters.part import Part
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.causal_wan.part import CausalWanPart
from vidc.exporters.parts.streaming_vae import StreamingVae
from vidc.exporters.parts.taehv.config import GROUP as TAEHV
from vidc.exporters.parts.taehv.config import TaehvConfig
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.umt5.part import Umt5Part
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.part import WanVaePart
from vidc.exporters.table import MAX_SIZE, Table

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.exporters.checkpoint.layout import Layout

TRAINING_STEPS = 1000
"""Number of training timesteps; at the last one, 1000, a latent is pure noise."""
MAX_SHIFT = 1000
"""Far above any real shift; beyond it, or below its inverse, shifted steps would coincide."""
TEXT = "text"
CLEAN = "clean"


@dataclass(frozen=True)
class StreamConfig(Table):
    """Static sizes of a stream: pixels, number of videos; window, sink and block in latents."""

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


@dataclass(frozen=True)
class SamplerConfig(Table):
    """Flow-matching steps, at most 1000, before the shift; and the timestep of the clean pass."""

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

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Share of noise at each denoising step: ``s k / (1 + (s - 1) k)`` for step ``1000 k``.

        The shift ``s`` of flow matching is that of "Scaling Rectified Flow Transformers", 5.3.2.
        """
        shares = [step / TRAINING_STEPS for step in self.steps]
        return tuple(self.shift * k / (1 + (self.shift - 1) * k) for k in shares)

    @property
    def timesteps(self) -> tuple[float, ...]:
        """Timesteps that the transformer takes at these steps: ``1000 sigma``."""
        return tuple(TRAINING_STEPS * sigma for sigma in self.sigmas)


@dataclass(frozen=True)
class CausalVideo(Family):
    """A causal Wan transformer, its autoencoders and, if one was given, a UMT5 text encoder.

    Attributes:
        kind: which autoencoders it has, a key of ``KINDS``.
    """

    transformer: TransformerConfig
    vae: VaeConfig
    stream: StreamConfig
    sampler: SamplerConfig
    text_encoder: TextEncoderConfig | None = None
    taehv: TaehvConfig = field(default_factory=TaehvConfig)
    kind: str = WAN

    name: ClassVar[str] = "causal_video"
    program: ClassVar[str] = "causal_video"
    tables: ClassVar[Mapping[str, type[Table]]] = {
        "model": TransformerConfig,
        "vae": VaeTable,
        "taehv": TaehvConfig,
        "stream": StreamConfig,
        "sampler": SamplerConfig,
    }
    read_off: ClassVar[tuple[str, ...]] = ("text_encoder",)
    groups: ClassVar[tuple[str, ...]] = (
        CausalWanPart.group, WanVaePart.group, TAEHV, Umt5Part.group,
    )  # fmt: skip
    text_group: ClassVar[str | None] = Umt5Part.group
    quantized_group: ClassVar[str] = CausalWanPart.group
    layer_kinds: ClassVar[tuple[LayerKind, ...]] = (
        LayerKind("self-attention qkv", "attn1.to_*"),
        LayerKind("self-attention out", "attn1.to_out.0"),
        LayerKind("cross-attention", "attn2.**"),
        LayerKind("ffn up", "ffn.net.0.proj"),
        LayerKind("ffn down", "ffn.net.2"),
    )

    def __post_init__(self) -> None:
        stream, patch = self.stream, self.transformer.patch
        for part in self.autoencoders:
            channels = f"{CHANNELS[part.group]} = {part.channels}"
            stream.require(
                self.transformer.channels == part.channels,
                f"model.channels = {self.transformer.channels} but {channels}",
                "the transformer and its autoencoders must share their latents",
            )
            stream.require(
                part.spatial_stride == self.spatial_stride,
                f"a latent has {self.spatial_stride} pixels a side in {self.decoder_group}, and "
                f"{part.spatial_stride} in {part.group}",
                "choose one of the two with vae.kind, or set taehv.patch",
            )
        for name, size, stride in (
            ("height", stream.height, self.spatial_stride * patch[1]),
            ("width", stream.width, self.spatial_stride * patch[2]),
        ):
            stream.require(
                size % stride == 0,
                f"stream.{name} = {size} is not a multiple of {stride} (VAE stride x patch)",
                f"use {max(stride, size // stride * stride)} or {(size // stride + 1) * stride}",
            )
        stream.require(
            self.frame_tokens <= MAX_SIZE,
            f"stream.height x stream.width = {stream.height} x {stream.width} gives a frame "
            f"{self.frame_tokens} tokens, more than {MAX_SIZE}",
            "choose smaller ones",
        )

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, Any]]) -> Self:
        """Reads the five tables and, if it is there, ``text_encoder``."""
        encoder, vae = tables.get("text_encoder"), VaeTable.from_table(tables.get("vae", {}), "vae")
        return cls(
            TransformerConfig.from_table(tables.get("model", {}), "model"),
            vae.sizes,
            StreamConfig.from_table(tables.get("stream", {}), "stream"),
            SamplerConfig.from_table(tables.get("sampler", {}), "sampler"),
            None if encoder is None else TextEncoderConfig.from_table(encoder, "text_encoder"),
            TaehvConfig.from_table(tables.get("taehv", {}), "taehv"),
            vae.kind,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the five tables and ``text_encoder``, None if there is none."""
        encoder = self.text_encoder
        return {
            "model": self.transformer.to_json(),
            "vae": {**self.vae.to_json(), "kind": self.kind},
            "taehv": self.taehv.to_json(),
            "stream": self.stream.to_json(),
            "sampler": self.sampler.to_json(),
            "text_encoder": None if encoder is None else encoder.to_json(),
        }

    @property
    def parts(self) -> Mapping[str, Part]:
        """Text encoder, transformer, autoencoders."""
        encoder = self.text_encoder
        text = () if encoder is None else (Umt5Part(encoder, self.transformer.text_len),)
        return {part.group: part for part in (*text, self.transformer_part, *self.autoencoders)}

    @property
    def decoder_group(self) -> str:
        """The autoencoder that sessions decode with unless told."""
        return self.decoder_groups[0]

    @property
    def decoder_groups(self) -> tuple[str, ...]:
        """The model's autoencoders."""
        return KINDS[self.kind]

    @property
    def transformer_part(self) -> CausalWanPart:
        """The transformer over this stream's ring."""
        stream = self.stream
        return CausalWanPart(
            self.transformer, stream.batch, stream.block, stream.window, stream.sink,
            self.latent_size,
        )  # fmt: skip

    @property
    def vae_part(self) -> WanVaePart:
        """The VAE over this stream's blocks."""
        stream = self.stream
        return WanVaePart(self.vae, stream.batch, stream.block, stream.height, stream.width)

    @property
    def taehv_part(self) -> StreamingVae:
        """The TAEHV over this stream's blocks."""
        from vidc.exporters.parts.taehv.part import TaehvPart

        stream = self.stream
        return TaehvPart(self.taehv, stream.batch, stream.block, stream.height, stream.width)

    @property
    def autoencoders(self) -> tuple[StreamingVae, ...]:
        """The parts that decode; sessions use the first unless told."""
        groups = self.decoder_groups
        return tuple(self.taehv_part if group == TAEHV else self.vae_part for group in groups)

    @property
    def spatial_stride(self) -> int:
        """Pixels to a latent, in height and in width."""
        return self.autoencoders[0].spatial_stride

    def with_texts(self, path: Path) -> tuple[Self, TextSource]:
        """Finds a UMT5 encoder and its tokenizer; raises what ``open_text_encoder`` raises."""
        from vidc.exporters.parts.umt5.folder import open_text_encoder

        found = open_text_encoder(path, self.transformer.text_dim)
        source = TextSource(found.checkpoint, found.tokenizer)
        return replace(self, text_encoder=found.config), source

    @property
    def pipeline_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings of the index, which must name one transformer, and of the scheduler."""
        return {
            "model_index.json": {
                "transformer_2": [None, None],
                "boundary_ratio": None,
                "expand_timesteps": False,
            },
            "scheduler/scheduler_config.json": {
                "flow_shift": float(self.sampler.shift),
                "shift": float(self.sampler.shift),
                "num_train_timesteps": TRAINING_STEPS,
                "prediction_type": "flow_prediction",
                "use_dynamic_shifting": False,
            },
        }

    @classmethod
    def layouts(cls) -> "tuple[Layout, ...]":
        """Returns those of a UMT5 encoder, the autoencoders, a UNet and a Wan transformer.

        The order matters: names of a VAE are a UNet's as well, and a UNet has a transformer's.
        """
        from vidc.exporters.checkpoint.layout import UNET
        from vidc.exporters.parts.causal_wan.names import LAYOUTS as TRANSFORMER
        from vidc.exporters.parts.taehv.names import LAYOUTS as TINY
        from vidc.exporters.parts.umt5.names import LAYOUTS as TEXT
        from vidc.exporters.parts.wan_vae.names import LAYOUTS as VAE

        return (*TEXT, *VAE, *TINY, UNET, *TRANSFORMER)

    @property
    def latent_size(self) -> tuple[int, int]:
        """Height and width of a latent frame."""
        stride = self.spatial_stride
        return self.stream.height // stride, self.stream.width // stride

    @property
    def frame_tokens(self) -> int:
        """Tokens of one latent frame."""
        return self.transformer_part.frame_tokens

    def spec(self) -> dict[str, Any]:
        """Returns the sizes and the sampler's steps, as the program's spec names them."""
        stream, sizes = self.stream, self.transformer
        height, width = self.latent_size
        return {
            "batch": stream.batch,
            "block": stream.block,
            "window": stream.window,
            "sink": stream.sink,
            "frame_tokens": self.frame_tokens,
            "grid": [height // sizes.patch[1], width // sizes.patch[2]],
            "latent": [sizes.channels, height, width],
            "video": [stream.height, stream.width],
            "head_dim": sizes.head_dim,
            "text": [sizes.text_len, sizes.text_dim],
            "timesteps": list(self.sampler.timesteps),
            "sigmas": list(self.sampler.sigmas),
            "context_timestep": self.sampler.context_timestep,
            "decoders": list(self.decoder_groups),
            "pending": "kv_update",
        }

    def passes(self) -> tuple[Pass, ...]:
        """The text, each denoising step, and the clean pass: activations differ between them."""
        steps = (Pass(f"step.{i}", time) for i, time in enumerate(self.sampler.timesteps))
        return (Pass(TEXT, None), *steps, Pass(CLEAN, self.sampler.context_timestep))

    def pass_of(self, component: str, inputs: "Mapping[str, Tensor]") -> str:
        """Returns the text's pass, the step with the nearest timestep, or the clean one."""
        if component == "text_kv":
            return TEXT
        if component != "denoise":
            return CLEAN
        timestep = float(inputs["timestep"].flatten()[0])
        distances = [abs(time - timestep) for time in self.sampler.timesteps]
        return f"step.{distances.index(min(distances))}"

    def calibration_rollout(self) -> Rollout:
        """Blocks until the window is full, one that pushes others out, a switch, one more."""
        filling = -(-self.stream.window // self.stream.block)
        return Rollout(filling + 2, filling + 1)

    @property
    def calibrated_tables(self) -> tuple[str, ...]:
        """The transformer's sizes, the stream's and the sampler's."""
        return ("model", "stream", "sampler")

    def calls(self, layer: str) -> int:
        """Returns the passes that run a layer: the clean one ends at the last keys and values."""
        if self.transformer_part.rows(layer) == 0:
            return 0
        last = f"blocks.{self.transformer.layers - 1}."
        keys_values = (f"{last}attn1.to_k", f"{last}attn1.to_v")
        skipped = layer == "proj_out" or (layer.startswith(last) and layer not in keys_values)
        return len(self.sampler.steps) + (not skipped)

    def fixed_work(self) -> tuple[FixedWork, ...]:
        """Attention to the text, and the patch embedding."""
        sizes, part = self.transformer, self.transformer_part
        passes = len(self.sampler.steps)
        pixels = sizes.channels * sizes.patch[1] * sizes.patch[2]
        text = FixedWork(
            4 * part.tokens * sizes.text_len * sizes.dim,
            2 * (part.tokens + part.batch * sizes.text_len) * sizes.dim,
            sizes.layers * (passes + 1) - 1,
        )
        patch = FixedWork(
            2 * part.tokens * pixels * sizes.dim,
            pixels * sizes.dim + part.tokens * (pixels + sizes.dim),
            passes + 1,
        )
        return (text, patch)

    def rollout_flops(self, rollout: Rollout, *, decoded: bool = True) -> float:
        """Estimates denoising steps and a clean pass for each block, and the switch's recache."""
        part = self.transformer_part
        passes = len(self.sampler.steps) + 1
        recached = part.recached(rollout.switch_after * part.block)
        frames = rollout.blocks * passes * part.block + recached
        decoding = rollout.blocks * self.decode_flops() if decoded else 0.0
        return frames * part.frame_flops() + decoding

    def decode_flops(self) -> float:
        """Estimates decoding one block by the first autoencoder."""
        return self.autoencoders[0].block_flops()

    def components_flops(self, rollout: Rollout) -> float:
        """Estimates a rollout, prompt switches at every position of the ring, and autoencoders.

        Golden data call both encoders of an autoencoder, and both decoders of the second one.
        """
        part = self.transformer_part
        points = range(2, part.window // part.block + 2)
        recached = sum(part.recached(blocks * part.block) for blocks in points)
        # Each block before the last switch is remembered, and one pass follows it.
        frames = recached + points.stop * part.block
        # A pass of an encoder takes about as much as one of its decoder.
        blocks = sum(2 * each.block_flops() for each in self.autoencoders)
        blocks += sum(2 * each.block_flops() for each in self.autoencoders[1:])
        return self.rollout_flops(rollout) + frames * part.frame_flops() + blocks
