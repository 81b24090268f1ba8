"""Recorded actions and states in files."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vidc.compiler.cli.controls import ControlOptions
from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.program import program_spec
from vidc.plugins.errors import UsageError
from vidc.runtime.programs.spec import ProgramSpec
from vidc.runtime.programs.world_inputs import action_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "world" / "actions.csv"


@pytest.fixture(scope="module")
def spec():
    return program_spec(load_preset("world-tiny").model)


def test_the_example_holds_actions_of_its_preset(spec):
    found = ControlOptions(EXAMPLE, None).read(Path("b"), spec)
    assert found.rows == 48
    checked = action_of(found.actions, spec, (48, spec.actions), torch.device("cpu"))
    assert len(checked.unique(dim=0)) > 10


def test_the_example_with_movements_holds_actions_of_its_preset():
    spec = program_spec(load_preset("oasis-tiny").model)
    found = ControlOptions(EXAMPLE.with_name("oasis_actions.csv"), None).read(Path("b"), spec)
    shape = (48, spec.actions)
    checked = action_of(found.actions, spec, shape, torch.device("cpu"))
    assert len(checked.unique(dim=0)) > 10


def test_the_example_of_single_actions_holds_those_of_its_preset():
    spec = program_spec(load_preset("latent-world-tiny").model)
    found = ControlOptions(EXAMPLE.with_name("latent_actions.csv"), None).read(Path("b"), spec)
    checked = action_of(found.actions, spec, (48, spec.actions), torch.device("cpu"))
    assert len(checked.unique(dim=0)) == spec.actions


def test_a_folder_is_a_state(spec, tmp_path):
    for name in ("low_res", "act"):
        np.save(tmp_path / f"{name}.npy", np.ones((4, 2), np.uint8))
    found = ControlOptions(None, tmp_path).read(Path("b"), spec)
    assert found.rows is None
    assert found.state.keys() == {"low_res.npy", "act.npy"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"1,2\n3\n"),
        ("a.npy", b"\x93NUMPY"),
        ("a.npy", b""),
        ("a.bin", b"1,2\n"),
    ],
)
def test_refuses_file_that_holds_no_array(spec, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"VIDC-RUN-CONTROLS.*cannot be read"):
        ControlOptions(tmp_path / name, None).read(Path("b"), spec)


def test_refuses_pickled_objects(spec, tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UsageError, match="VIDC-RUN-CONTROLS"):
        ControlOptions(tmp_path / "a.npy", None).read(Path("b"), spec)


@pytest.mark.parametrize("options", [{"actions": EXAMPLE}, {"start": Path()}])
def test_refuses_controls_of_a_bundle_without_actions(options):
    with pytest.raises(UsageError, match=r"VIDC-RUN-CONTROLS.*takes no actions"):
        ControlOptions(**{"actions": None, "start": None} | options).read(Path("b"), ProgramSpec())
