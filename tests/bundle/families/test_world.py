"""A bundle of DIAMOND's world: the oracle's frames, an image as a start, refused options."""

import pytest
import torch
from diamond_models import actions_of, start_of
from PIL import Image

from vidc.runtime import load


@pytest.fixture
def world(worlds):
    return worlds("world")


def test_engines_equal_the_oracle_in_open_loop(world):
    frames, start = [], start_of(world.model)
    noise = torch.Generator().manual_seed(1)
    with load(world.bundle) as loaded, loaded.session() as session:
        for action in actions_of(world.model, 5):
            values = torch.randn(session.spec.noise_shape, generator=noise)
            pieces = list(values[0].split([draw.size for draw in session.spec.draws]))
            oracle = world.made.world(start, lambda shape, left=pieces: left.pop(0).reshape(shape))
            session.spawn(*start)
            session.act(action)
            frame = session.step(values)
            expected = ((oracle.step(action) + 1) * 127.5).round()[0].permute(1, 2, 0)
            frames.append((frame[0].float() - expected).abs())
    apart = torch.stack(frames)
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 1e-3


def test_an_image_is_a_start(vidc, world, tmp_path):
    Image.new("RGB", (42, 30), (200, 10, 10)).save(tmp_path / "red.png")
    options = ("--frames", "2", "--start", str(tmp_path / "red.png"), "-o", str(tmp_path / "o.gif"))
    assert vidc("run", str(world.bundle), *options)[0] == 0
    with Image.open(tmp_path / "o.gif") as made:
        assert made.n_frames == 2
    Image.new("RGB", (40, 30)).save(tmp_path / "small.png")
    options = ("--start", str(tmp_path / "small.png"), "-o", str(tmp_path / "p.gif"))
    status, _, err = vidc("run", str(world.bundle), *options)
    assert (status, "VIDC-SESSION-START" in err) == (2, True)
    assert not (tmp_path / "p.gif").exists()


@pytest.mark.parametrize(
    ("content", "options", "code"),
    [
        ("1,0,jump,0,0\n", (), "VIDC-RUN-CONTROLS"),
        ("", (), "VIDC-RUN-CONTROLS"),
        ("1,0,0,0,0\n", ("--frames", 2), "VIDC-RUN-LENGTH"),
        ("1,0,0,0,0\n", ("--frames", 1, "--blocks", 1), "VIDC-RUN-LENGTH"),
        ("1,0,0,0,0\n", ("--prompt", "a fox"), "VIDC-PROMPT-UNUSED"),
        ("1,0,0,0,0\n", ("--start", "."), "VIDC-RUN-CONTROLS"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt. input contained no data")
def test_refuses_options(vidc, world, tmp_path, monkeypatch, content, options, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(content)
    arguments = ("--actions", "a.csv", *map(str, options), "-o", "o.gif")
    status, out, err = vidc("run", str(world.bundle), *arguments)
    assert (status, out, code in err) == (2, "", True)
    assert not (tmp_path / "o.gif").exists()


def test_analysis_refuses_a_recipe_with_convolutions(vidc, world):
    status, _, err = vidc("calibrate", *world.source, "--analyze", "-n", "1")
    assert (status, "VIDC-SENSITIVITY-GROUPS" in err) == (2, True), err
