import torch

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import weight_layout, write_weights
from vidc.exporters.families.causal_video import CausalVideo, SamplerConfig, StreamConfig
from vidc.exporters.models import with_weights
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict
from vidc.exporters.program import export_program
from vidc.plugins.signature import state_output


def test_onnxruntime_decoding_matches_the_module(tmp_path, run_onnx):
    config = CausalVideo(
        TransformerConfig(dim=32, ffn_dim=64, heads=2, layers=1),
        VaeConfig(base_dim=4, res_blocks=1),
        StreamConfig(height=16, width=32, window=4, sink=0, block=2),
        SamplerConfig(),
    )
    weights = random_state_dict(config.vae, 3, torch.float32)
    (tmp_path / "weights").mkdir()
    lazy = {name: LazyTensor.of(weight) for name, weight in weights.items()}
    write_weights(tmp_path / "weights" / "vae.safetensors", lazy)
    network = with_weights(config.parts["vae"].network("fp32"), weights)
    parts = config.parts["vae"].components(network)

    torch.manual_seed(0)
    eager: dict[str, torch.Tensor] = {}
    states: dict[str, torch.Tensor] = {}
    for name in ("vae_decode_first", "vae_decode"):
        part = parts[name]
        path = tmp_path / f"{name}.onnx"
        placements = {"vae": weight_layout(weights)}
        export_onnx(name, export_program(part), part.signature, placements, path)
        latent = torch.randn(part.signature["latent"].shape)
        for state in part.signature.states:
            eager.setdefault(state.name, torch.zeros(state.shape))
        (frames,) = part.module(latent, *(eager[s.name] for s in part.signature.states))
        results = run_onnx(path, part.signature, {"latent": latent, **states})
        torch.testing.assert_close(results["frames"], frames, rtol=1e-4, atol=1e-4)
        states = {s.name: results[state_output(s.name)] for s in part.signature.states}
        for state in part.signature.states:
            torch.testing.assert_close(
                states[state.name], eager[state.name], rtol=1e-4, atol=1e-4, msg=state.name
            )
