"""Going on from shipped weights."""

import json

import torch
from demo_model.export_weights import export
from demo_model.import_weights import import_weights
from demo_model.train_flow import load_trained
from demo_model.train_vae import load_vae
from demo_model.training import checkpoint


def test_a_training_goes_on_from_shipped_weights(sizes, vae_folder, trained_folder, tmp_path):
    export(vae_folder, trained_folder, tmp_path / "shipped", sizes)
    import_weights(tmp_path / "shipped", tmp_path / "again", sizes)
    before = load_trained(trained_folder, sizes, "cpu").state_dict()
    after = load_trained(tmp_path / "again/few", sizes, "cpu").state_dict()
    for name, tensor in before.items():
        assert torch.equal(tensor.half().float(), after[name]), name
    vae, statistics = load_vae(tmp_path / "again/vae", sizes, "cpu")
    assert statistics.mean == tuple(sizes.config.vae.latents_mean)
    assert vae.state_dict().keys() == load_vae(vae_folder, sizes, "cpu")[0].state_dict().keys()
    assert json.loads((tmp_path / "again/vae/latents.json").read_text())["std"]
    told = checkpoint.trained(tmp_path / "again/few/checkpoint")[1]
    assert told["part"] == "few"
