"""Checkpoints of Oasis: `oasis500m.safetensors` and `vit-l-20.safetensors`."""

import pytest
import torch
from oasis_models import pair
from safetensors.torch import load_file, save_file

from vidc.exporters.families.oasis import Oasis
from vidc.plugins.errors import BuildError


def load(made, group, path):
    loaded = made.model.parts[group].load(path, (), Oasis.layouts(), False)
    return {name: tensor.load() for name, tensor in loaded.tensors.items()}


def test_both_files_of_a_download_load(tmp_path):
    made = pair()
    for group, path in zip(("oasis", "vae"), made.save(tmp_path), strict=True):
        found, expected = load(made, group, path), made.networks[group].state_dict()
        assert found.keys() == expected.keys() == made.model.parts[group].shapes().keys()
        assert all(found[name].equal(expected[name]) for name in expected)


def test_a_pickled_file_loads(tmp_path):
    made = pair()
    tensors = load_file(made.save(tmp_path)[0])
    torch.save(tensors, tmp_path / "oasis500m.pt")
    found = load(made, "oasis", tmp_path / "oasis500m.pt")
    assert found["external_cond.weight"].equal(tensors["external_cond.weight"])


def changed(path, name, tensor):
    """Writes the file anew with one tensor replaced, or left out if it is None."""
    tensors = load_file(path)
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, path)
    return path


@pytest.mark.parametrize(
    "names", ["blocks.{}.rotary_emb.freqs", "spatial_rotary_emb.freqs", "temporal_rotary_emb.freqs"]
)
def test_rotary_frequencies_may_have_any_of_their_names(tmp_path, names):
    made = pair()
    path = made.save(tmp_path)[0]
    for half in ("s_attn", "t_attn"):
        name = f"blocks.0.{half}.rotary_emb.freqs"
        tensor = load_file(path)[name]
        other = names.format(f"2.{half}")
        if "{}" in names or other.startswith({"s_attn": "spatial", "t_attn": "temporal"}[half]):
            changed(path, name, None)
            changed(path, other, tensor.half())
    assert load(made, "oasis", path).keys() == made.model.parts["oasis"].shapes().keys()


@pytest.mark.parametrize("half", ["s_attn", "t_attn"])
@pytest.mark.parametrize("change", [lambda each: each * 1.5, lambda each: each[:-1].clone()])
def test_refuses_other_rotary_frequencies(tmp_path, half, change):
    made = pair()
    path = made.save(tmp_path)[0]
    name = f"blocks.0.{half}.rotary_emb.freqs"
    changed(path, name, change(load_file(path)[name]))
    with pytest.raises(BuildError, match=rf"VIDC-CHECKPOINT-MISMATCH.*{half}.*other frequencies"):
        load(made, "oasis", path)


@pytest.mark.parametrize(
    ("group", "tables", "named"),
    [
        ("oasis", {"model": {"actions": 7}}, r"model\.actions = 7, not 6"),
        ("oasis", {"model": {"layers": 2}}, r"model\.layers = 2, not 3"),
        ("oasis", {"model": {"dim": 96, "heads": 6}}, r"model\.dim = 96, not 64"),
        ("vae", {"vae": {"patch": 10}, "stream": {"height": 60, "width": 80}}, "vae.patch = 10"),
        ("vae", {"vae": {"decoder_layers": 1}}, r"vae\.decoder_layers = 1, not 2"),
        ("vae", {"vae": {"encoder_layers": 2}}, r"vae\.encoder_layers = 2, not 1"),
        (
            "vae",
            {"model": {"channels": 8}, "vae": {"channels": 8}},
            r"vae\.channels = 8, not 16",
        ),
    ],
)
def test_refuses_another_models_checkpoint(tmp_path, group, tables, named):
    path = pair(**tables).save(tmp_path)[group == "vae"]
    with pytest.raises(BuildError, match=rf"VIDC-CHECKPOINT-MISMATCH.*{named}"):
        load(pair(), group, path)


@pytest.mark.parametrize("group", ["oasis", "vae"])
def test_refuses_the_other_parts_file(tmp_path, group):
    made = pair()
    other = made.save(tmp_path)[group == "oasis"]
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-.*Oasis"):
        load(made, group, other)


def test_refuses_weights_that_are_not_finite(tmp_path):
    made = pair()
    made.transformer.external_cond.weight[0, 0] = torch.nan
    with pytest.raises(BuildError, match=r"VIDC-CHECKPOINT-NONFINITE.*external_cond"):
        load(made, "oasis", made.save(tmp_path)[0])
