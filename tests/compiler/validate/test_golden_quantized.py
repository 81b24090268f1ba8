"""Golden data of a recipe that takes no calibration."""

from vidc.compiler.build.golden import PlayGolden
from vidc.compiler.build.golden_quantized import PlayQuantized
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.store.stage import Workspace
from vidc.compiler.validate.compare import worst_of_calls
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.scenario import Scenario


def test_scales_for_each_token_are_played_without_ranges(model, tmp_path):
    for name in ("golden", "quantized"):
        (tmp_path / name).mkdir()
    scenario = Scenario(blocks=2, switch_after=1, rollout=True)
    model.golden(tmp_path / "golden", scenario)
    workspace = Workspace(
        tmp_path / "quantized", {**model.inputs, "golden": tmp_path / "golden"}, print
    )
    precisions = dict.fromkeys(("transformer", "vae"), "fp32")
    exact = PlayGolden(model.config, precisions, scenario, (), "cpu", None)
    formats = apply_recipe(load_recipe("fp8-dynamic"), model.config)
    PlayQuantized(exact, formats, None).run(workspace)
    found = Golden.load(tmp_path / "quantized")
    errors = worst_of_calls(found.eager, found.reference)
    for name, metrics in errors.items():
        if name.startswith("vae_"):
            assert metrics.relative_l2 == 0
        else:
            assert 0.01 < metrics.relative_l2 < 0.1
    assert found.eager_rollout is not None
