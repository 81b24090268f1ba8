"""The streaming decoder against diffusers' decoding of whole clips."""

import pytest
import torch

from vidc.compiler.bench.baseline.vae import VaeDecoder
from vidc.exporters.wan_vae.model import create


@pytest.mark.parametrize("blocks", [(3, 3, 3), (1, 1, 2)])
def test_like_diffusers_on_a_whole_clip(make_model, blocks):
    model = make_model()
    vae = create(model.config.vae, torch.float32, "cpu")
    vae.load_state_dict(model.vae)
    latent = torch.randn(sum(blocks), 16, 4, 6, generator=torch.Generator().manual_seed(2))
    mean, std = (
        torch.tensor(values).view(-1, 1, 1)
        for values in (model.config.vae.latents_mean, model.config.vae.latents_std)
    )
    expected = vae.decode((latent * std + mean).transpose(0, 1)[None]).sample[0]
    decoder = VaeDecoder(model.config.vae)
    decoder.load_state_dict({name: model.vae[name] for name in decoder.state_dict()})
    memory = decoder.memory()
    with torch.no_grad():
        actual = torch.cat([decoder(part, memory) for part in latent.split(blocks)], 1)
    assert actual.shape == (3, 4 * sum(blocks) - 3, 32, 48)
    assert float((actual - expected).norm() / expected.norm()) < 1e-5
    assert expected.std() > 0.05
