"""Which components a model is run as: known from its configuration, without building anything."""

from vidc.exporters.config import ModelConfig


def component_groups(config: ModelConfig) -> dict[str, str]:
    """Every component's name, in the order of first use, with the weights group it runs on."""
    recache = [f"recache_{frames}" for frames in config.recache_frames]
    text = {} if config.text_encoder is None else {"text_encoder": "text_encoder"}
    return (
        text
        | dict.fromkeys(["text_kv", "denoise", "kv_update", *recache], "transformer")
        | dict.fromkeys(["vae_decode_first", "vae_decode", "vae_encode_first", "vae_encode"], "vae")
    )


def weights_groups(config: ModelConfig) -> tuple[str, ...]:
    """The weights files of a model, each of one network."""
    return tuple(dict.fromkeys(component_groups(config).values()))
