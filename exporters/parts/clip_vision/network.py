"""A CLIP vision transformer, under the parameter names of transformers.

transformers' ``CLIPVisionModelWithProjection`` is the reference.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.parts.clip_vision.config import ClipVisionConfig

_EPS = 1e-5


class _Table(nn.Module):
    """Learned vectors."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))


class _Embeddings(nn.Module):
    """Patches and the class token, with their positions."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.empty(config.width))
        self.patch_embedding = nn.Conv2d(
            3, config.width, config.patch, stride=config.patch, bias=False
        )
        self.position_embedding = _Table(config.tokens, config.width)

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps ``[1, 3, S, S]`` to tokens ``[1, L, C]``."""
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_embedding[None, None], patches], 1)
        return tokens + self.position_embedding.weight


class _Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_proj = nn.Linear(config.width, config.width)
        self.k_proj = nn.Linear(config.width, config.width)
        self.v_proj = nn.Linear(config.width, config.width)
        self.out_proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[1, L, C]``."""
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = F.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return result


class _FeedForward(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.hidden)
        self.fc2 = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[1, L, C]``."""
        result: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return result


class _Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.layer_norm1 = nn.LayerNorm(config.width, _EPS)
        self.mlp = _FeedForward(config)
        self.layer_norm2 = nn.LayerNorm(config.width, _EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[1, L, C]``."""
        x = x + self.self_attn(self.layer_norm1(x))
        result: Tensor = x + self.mlp(self.layer_norm2(x))
        return result


class _Layers(nn.Module):
    """The transformer layers, in order."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))


class _VisionModel(nn.Module):
    """The transformer: pixels to the normalized class token."""

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        # transformers spells it this way.
        self.pre_layrnorm = nn.LayerNorm(config.width, _EPS)
        self.encoder = _Layers(config)
        self.post_layernorm = nn.LayerNorm(config.width, _EPS)

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps ``[1, 3, S, S]`` to ``[1, C]``."""
        x = self.pre_layrnorm(self.embeddings(pixels))
        for layer in self.encoder.layers:
            x = layer(x)
        result: Tensor = self.post_layernorm(x[:, 0])
        return result


class ClipVision(nn.Module):
    """The network.

    Args:
        config: its sizes.
    """

    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        self.vision_model = _VisionModel(config)
        self.visual_projection = nn.Linear(config.width, config.projection, bias=False)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.visual_projection.weight.dtype

    def forward(self, pixels: Tensor) -> Tensor:
        """Maps normalized pixels ``[1, 3, S, S]`` to an embedding ``[1, E]``."""
        result: Tensor = self.visual_projection(self.vision_model(pixels))
        return result
