"""From checkpoints to weights that vidc builds and runs from a text."""

import hashlib
import json
import tomllib

import pytest
import torch
from demo_model.evaluation.eager import eager_bundle
from demo_model.export_weights import (
    DIGESTS,
    FILES,
    MOST_BYTES,
    ROOM,
    ExportError,
    export,
    halves,
    with_statistics,
)
from demo_model.grammar import PHRASINGS, caption
from demo_model.split import Split, sample
from demo_model.tokenizer import tokenizer
from demo_model.tokens import LENGTH, PAD, encode
from demo_model.train_flow import trainable
from demo_model.train_vae import STATISTICS
from demo_model.training.checkpoint import Training, save
from demo_model.training.ema import Ema
from demo_model.training.networks import demo_sizes, new_vae
from demo_model.training.optimizer import optimizer_for
from demo_model.training.vae import Statistics

from vidc.exporters.checkpoint.load import load_weights
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.names import disagreements
from vidc.exporters.parts.umt5.folder import open_text_encoder
from vidc.exporters.parts.umt5.weights import load_encoder_weights


def untrained(sizes, folder):
    """Checkpoints as the trainings leave them, before the first step."""
    torch.manual_seed(4)
    latents = trainable(sizes)
    torch.nn.init.normal_(latents["transformer"].proj_out.weight, std=0.05)
    for name, modules in (("vae", new_vae(sizes)), ("latents", latents)):
        training = Training(modules, Ema(modules), optimizer_for(modules))
        save(folder / name / "checkpoint", training, {"part": name, "step": 0})
    text = json.dumps({"mean": [0.0] * 16, "std": [1.0] * 16})
    (folder / "vae" / STATISTICS).write_text(text)
    return folder / "vae", folder / "latents"


@pytest.fixture(scope="module")
def exported(sizes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    export(*untrained(sizes, folder), folder / "demo", sizes)
    return folder / "demo"


def test_the_demo_model_fits_into_its_bytes(tmp_path):
    sizes = demo_sizes()
    document = export(*untrained(sizes, tmp_path), tmp_path / "demo", sizes)
    assert document["bytes"] <= (1 - ROOM) * MOST_BYTES
    assert 5e6 <= (tmp_path / "demo" / FILES["transformer"]).stat().st_size / 2 <= 10e6
    transformer = sizes.config.transformer
    assert transformer.layers >= 6
    assert transformer.heads >= 2
    assert transformer.head_dim in (64, 128)


def test_what_was_exported_is_what_was_trained(sizes, exported):
    for group in ("transformer", "vae"):
        expected = sizes.config.parts[group].network("fp32").state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
        loaded = load_weights(exported / group, (), shapes, CausalVideo.layouts(), disagreements)
        assert loaded.tensors.keys() == expected.keys()
    found = open_text_encoder(exported / "text_encoder", sizes.config.transformer.text_dim)
    assert found.config == sizes.text
    load_encoder_weights(found.checkpoint, found.config, CausalVideo.layouts())


def test_digests_are_those_of_the_files(exported):
    document = json.loads((exported / DIGESTS).read_text())
    files = {p.relative_to(exported).as_posix() for p in exported.rglob("*") if p.is_file()}
    assert files == {*document["files"], DIGESTS}
    for path, entry in document["files"].items():
        data = (exported / path).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert len(data) == entry["bytes"]
    assert document["trained"]["latents"] == {"part": "latents", "step": 0}


def test_the_tokenizer_gives_the_numbers_that_were_trained_on():
    made = tokenizer()
    made.enable_padding(length=LENGTH, pad_id=PAD, pad_token="<pad>")
    for index in range(50):
        scene = sample(Split.HELD_OUT, index).scene
        for phrasing in PHRASINGS:
            text = caption(scene, phrasing)
            assert made.encode(text).ids == encode(text)
    assert made.encode("A Red square,moving left").ids == encode("a red square , moving left")


def test_weights_that_do_not_fit_are_refused(sizes, tmp_path, monkeypatch):
    with pytest.raises(ExportError, match="float16"):
        halves({"a": torch.tensor([1e6])}, "vae")
    monkeypatch.setattr("demo_model.export_weights.MOST_BYTES", 1000)
    with pytest.raises(ExportError, match="MB"):
        export(*untrained(sizes, tmp_path), tmp_path / "demo", sizes)
    assert not (tmp_path / "demo").exists()


def test_a_preset_takes_the_latents_statistics():
    statistics = Statistics(tuple(0.1 * i for i in range(16)), (2.0,) * 16)
    text = (
        "[vae]\nbase_dim = 8\nlatents_mean = [0.0, 0.0]\nlatents_std = [1.0]\n[stream]\nsink = 3\n"
    )
    document = tomllib.loads(with_statistics(text, statistics))
    assert document["vae"]["latents_mean"] == pytest.approx(statistics.mean)
    assert document["vae"]["latents_std"] == [2.0] * 16
    assert document["stream"] == {"sink": 3}
    with pytest.raises(ExportError, match="latents_mean"):
        with_statistics("[vae]\n", statistics)


def test_a_build_takes_the_weights_and_a_session_a_text(sizes, exported, tmp_path):
    """The build's own way to the weights, and PyTorch in the place of engines."""
    model, bundle = eager_bundle(sizes.config, exported, tmp_path)
    assert model == sizes.config
    videos = []
    for prompt in ("a red square moving left", "a blue circle moving up"):
        session = bundle.session(seed=1)
        session.prompt(prompt)
        videos.append(torch.cat(list(session.stream(2))))
    assert videos[0].shape == (21, *sizes.stream.video, 3)
    assert not torch.equal(*videos)
