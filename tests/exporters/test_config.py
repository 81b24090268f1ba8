import math

import pytest

from vidc.exporters.families.causal_video import SamplerConfig, StreamConfig
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.table import MAX_SIZE, Table
from vidc.plugins.errors import UsageError

LEAST = {
    "model": (TransformerConfig, {"dim": 48, "ffn_dim": 64, "heads": 2, "layers": 1}),
    "vae": (VaeConfig, {}),
    "stream": (StreamConfig, {"height": 16, "width": 16, "window": 6, "sink": 3, "block": 3}),
    "sampler": (SamplerConfig, {}),
}


def read(setting: str, value: object) -> Table:
    name, key = setting.split(".")
    kind, least = LEAST[name]
    return kind.from_table({**least, key: value}, name)


def refused(setting: str, value: object) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(setting, value)
    assert setting in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model.dim", 0),
        ("model.layers", MAX_SIZE + 1),
        ("model.channels", 0),
        ("model.patch", [1, 0, 2]),
        ("model.patch", [1, 2]),
        ("model.eps", -1),
        ("model.eps", 0),
        ("vae.base_dim", 0),
        ("vae.base_dim", 1),
        ("vae.res_blocks", 0),
        ("vae.dim_mult", [1, 2, 4, 0]),
        ("vae.dim_mult", [1, -2, 4, 4]),
        ("vae.latents_std", [0.0] + [1.0] * 15),
        ("vae.latents_std", [1.0] * 15 + [-1.0]),
        ("stream.batch", 0),
        ("stream.sink", -1),
        ("sampler.shift", 0),
        ("sampler.shift", 1e-17),
        ("sampler.shift", 1e308),
        ("sampler.context_timestep", -1),
        ("sampler.context_timestep", 1001),
        ("sampler.steps", []),
    ],
)
def test_values_that_cannot_work_are_refused(setting: str, value: object) -> None:
    assert refused(setting, value).code == "VIDC-CONFIG-SIZES"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
@pytest.mark.parametrize(
    "setting",
    [
        *("model.eps", "sampler.shift", "sampler.context_timestep"),
        *("vae.latents_mean", "vae.latents_std"),
    ],
)
def test_a_number_that_is_not_finite_is_refused(setting: str, value: float) -> None:
    assert refused(setting, value).code == "VIDC-CONFIG-SETTING"
    if setting.startswith("vae"):
        assert refused(setting, [1.0] * 15 + [value]).code == "VIDC-CONFIG-SETTING"


@pytest.mark.parametrize(
    ("setting", "value", "kind"),
    [
        ("stream.window", "wide", "an integer"),
        ("stream.window", 9.0, "an integer"),
        ("stream.window", True, "an integer"),
        ("sampler.shift", "big", "a finite number"),
        ("sampler.shift", False, "a finite number"),
        ("sampler.steps", 1000, "a list of integers"),
        ("sampler.steps", [1000.5], "a list of integers"),
        ("model.patch", "2", "a list of integers"),
        ("vae.latents_mean", [1, "2"], "a list of finite numbers"),
        ("vae.temporal_downsample", [0, 1, 1], "a list of true or false"),
    ],
)
def test_a_wrong_type_is_named_as_people_do(setting: str, value: object, kind: str) -> None:
    error = refused(setting, value)
    assert (error.code, error.hint) == ("VIDC-CONFIG-SETTING", f"set {setting} to {kind}")
    assert error.message.endswith(f"is not {kind}")


def test_an_unknown_and_a_missing_setting_are_named() -> None:
    with pytest.raises(UsageError, match=r"stream\.windw") as caught:
        read("stream.windw", 3)
    assert "'window'" in caught.value.hint
    with pytest.raises(UsageError, match=r"stream\.height is missing"):
        StreamConfig.from_table({}, "stream")


def test_integers_become_floats_and_lists_tuples() -> None:
    assert read("sampler.shift", 3) == SamplerConfig(shift=3.0)
    assert read("sampler.steps", [500]) == SamplerConfig(steps=(500,))
