"""diffusers' transformer of Wan, of given sizes."""

from diffusers import WanTransformer3DModel

from vidc.exporters.parts.causal_wan.config import TransformerConfig


def wan_transformer(sizes: TransformerConfig) -> WanTransformer3DModel:
    return WanTransformer3DModel(
        patch_size=sizes.patch,
        num_attention_heads=sizes.heads,
        attention_head_dim=sizes.head_dim,
        in_channels=sizes.channels,
        out_channels=sizes.channels,
        text_dim=sizes.text_dim,
        freq_dim=sizes.freq_dim,
        ffn_dim=sizes.ffn_dim,
        num_layers=sizes.layers,
        eps=sizes.eps,
    )
