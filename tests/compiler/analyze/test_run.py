"""`vidc calibrate --analyze` from end to end, on the smallest preset."""

import json
from dataclasses import replace

import pytest
from modelopt_here import needs_modelopt
from outlier import BAD, INT8, planted, recipe_of
from safetensors.torch import save_file

from vidc.compiler.analyze.choose import Budget
from vidc.compiler.analyze.run import make_plan
from vidc.compiler.config.layers import Setting
from vidc.compiler.config.recipe import LinearFormat, Recipe, load_recipe, recipe_toml
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.compiler.quantize.apply import apply_recipe
from vidc.plugins.errors import UnavailableError, UsageError

LONGLIVE = resolve("longlive-1.3b", gpu="cpu", precision="fp32", environ={}).model
H100 = targets()["h100"]


@pytest.fixture
def run(vidc, config, tmp_path_factory, monkeypatch):
    """Runs the command over weights with an outlier; the cache is every test's."""
    shared = tmp_path_factory.getbasetemp() / "sensitivity"
    monkeypatch.setenv("VIDC_CACHE", str(shared / "cache"))
    shared.mkdir(exist_ok=True)
    checkpoint, recipe = shared / "transformer.safetensors", shared / "plain.toml"
    if not checkpoint.exists():
        save_file(planted(config), checkpoint)
        recipe.write_text(recipe_toml(recipe_of(INT8)))

    def analyzed(*arguments):
        if "--recipe" not in arguments:
            arguments += ("--recipe", str(recipe))
        return vidc(
            "calibrate", "tiny", "--gpu", "cpu", "--checkpoint", str(checkpoint), "-n", "1",
            *arguments,
        )  # fmt: skip

    return analyzed


@needs_modelopt
def test_a_budget_keeps_the_layer_with_the_outlier_high(run, config, tmp_path):
    output = tmp_path / "calibration"
    status, out, err = run("--analyze", "-o", str(output), "--json")
    assert status == 0, err
    found = json.loads(out)["analysis"]
    assert (found["recipe"], found["target"], found["psnr_of"]) == ("plain", "cpu", "latents")
    assert found["mix"] is None
    groups = found["groups"]
    assert groups[0]["pattern"] == BAD
    assert [g["psnr_db"] for g in groups] == sorted(g["psnr_db"] for g in groups)
    assert sorted(g["time_rank"] for g in groups)[0] == 0
    floor = groups[0]["psnr_db"] + 2
    assert not output.with_name("calibration.toml").exists()

    status, out, err = run("--budget", f"psnr={floor}", "-o", str(output), "--json")
    assert status == 0, err
    analysis = json.loads(out)["analysis"]
    assert analysis["mix"]["kept"] == [BAD]
    assert analysis["mix"]["psnr_db"] >= floor
    file = tmp_path / "calibration.toml"
    assert analysis["recipe_file"] == str(file)
    formats = apply_recipe(load_recipe(str(file)), config).linear
    inside = {n: f for n, f in formats.items() if n.startswith("blocks.")}
    assert {n for n, f in inside.items() if f == LinearFormat()} == {BAD}
    assert {f for n, f in inside.items() if n != BAD} == {INT8}
    # What a person is told is what the file says.
    for text in (err, file.read_text()):
        assert f"{BAD}  {groups[0]['psnr_db']:.1f} dB, and costs" in text
        assert f"{analysis['mix']['flops_share']:.1%} of a denoising pass's matmuls" in text
    assert analysis["mix"]["flops_share"] == pytest.approx(
        apply_recipe(load_recipe(str(file)), config).flops_share
    )


@needs_modelopt
def test_plan_explains_each_group(run, tmp_path):
    assert run("--analyze", "-o", str(tmp_path / "calibration"))[0] == 0
    planned = ("--budget", "psnr=23", "-o", str(tmp_path / "other"), "--plan", "--json")
    status, out, err = run(*planned)
    assert status == 0, err
    rows = {row["stage"]: row["status"] for row in json.loads(out)["stages"]}
    assert rows.pop("mix") in ("MISS", "STALE")
    assert f"sensitivity:{BAD}" in rows
    assert set(rows.values()) == {"HIT"}
    rows = {row["stage"]: row for row in json.loads(run(*planned, "--seed", "3")[1])["stages"]}
    assert rows["calibrate:transformer"]["status"] == "STALE"
    assert rows[f"sensitivity:{BAD}"]["status"] == "UNKNOWN"
    assert "config.seed: 0 -> 3" in rows[f"sensitivity:{BAD}"]["reasons"]
    assert not (tmp_path / "other").exists()


@needs_modelopt
def test_a_time_is_reached_with_less_than_everything(run, tmp_path):
    arguments = ("--budget", "time=0.9", "-o", str(tmp_path / "calibration"), "--json")
    file = tmp_path / "mix" / "fast.toml"
    status, out, err = run(*arguments, "--recipe-file", str(file))
    assert status == 0, err
    mix = json.loads(out)["analysis"]["mix"]
    assert mix["time_ratio"] <= 0.9
    assert BAD in mix["kept"]
    assert "less than 90%" in file.read_text()


@needs_modelopt
def test_table_and_summary_without_vae(run, tmp_path):
    output = tmp_path / "calibration"
    status, out, err = run("--analyze", "--for", "h100", "-o", str(output))
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0] == str(output)
    assert lines[1].split()[:2] == ["group", "kind"]
    assert lines[2].startswith(BAD)
    assert len(lines) == 12
    assert "no VAE is given: PSNR is of latents" in err
    assert f"{BAD}: " in err
    assert "10 groups of recipe plain for h100, some 21 rollouts" in err
    assert "h100: INT8 matmuls are slower than bf16 here" in err


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("--budget", "psnr=x"), 2, "VIDC-BUDGET]"),
        (("--budget", "time=0.1"), 2, "VIDC-BUDGET-UNREACHABLE]"),
        (("--analyze", "--recipe", "fp8"), 3, "VIDC-SENSITIVITY-PEAKS]"),
        (("--analyze", "--recipe", "fp8", "--for", "t4"), 3, "VIDC-TARGET-PRECISION]"),
        (("--analyze", "--for", "h10"), 2, "VIDC-CONFIG-TARGET]"),
        (("--budget", "psnr=30", "--for", "h100"), 3, "VIDC-RECIPE-LOWERING]"),
        (("--budget", "psnr=30", "--for", "b200", "--backend", "aoti"), 3, "VIDC-BACKEND-TARGET]"),
        (
            ("--budget", "psnr=30", "--for", "a100", "--backend", "onnxruntime"),
            3,
            "VIDC-BACKEND-PRECISION]",
        ),
        (("--budget", "psnr=30", "--recipe-file", "recipe.json"), 2, "VIDC-CLI-USAGE]"),
        (("--analyze", "--recipe-file", "recipe.toml"), 2, "VIDC-CLI-USAGE]"),
        (("--recipe-file", "recipe.toml"), 2, "VIDC-CLI-USAGE]"),
        ((), 2, "VIDC-CLI-USAGE]"),
    ],
)
def test_rejects_unreachable_budget_before_rollouts(run, tmp_path, arguments, status, code):
    output = tmp_path / "calibration"
    found, out, err = run(*arguments, "-o", str(output))
    assert (found, out) == (status, "")
    assert code in err
    assert not output.exists()


def test_a_recipe_file_that_is_a_folder_is_refused_before_anything_runs(run, tmp_path):
    output = tmp_path / "calibration"
    (tmp_path / "calibration.toml").mkdir()
    status, _, err = run("--budget", "psnr=30", "-o", str(output))
    assert (status, "VIDC-SENSITIVITY-OUTPUT" in err) == (2, True)
    assert not output.exists()


def test_a_recipe_file_in_the_calibration_s_folder_is_refused_before_anything_runs(run, tmp_path):
    output = tmp_path / "calibration"
    file = output / "recipe.toml"
    status, _, err = run("--budget", "psnr=30", "-o", str(output), "--recipe-file", str(file))
    assert (status, "VIDC-SENSITIVITY-OUTPUT" in err) == (2, True)
    assert "which is replaced whole" in err
    assert not output.exists()


@pytest.mark.parametrize("option", ["--analyze-prompts=5", "--for=h100", "--recipe=fp8"])
def test_rejects_analysis_options_without_analysis(vidc, tmp_path, option):
    arguments = ("calibrate", "tiny", "--gpu", "cpu", "--random-weights", "1", option)
    status, _, err = vidc(*arguments, "-o", str(tmp_path / "calibration"))
    assert (status, "VIDC-CLI-USAGE" in err) == (2, True)
    assert not (tmp_path / "calibration").exists()


@needs_modelopt
def test_unreachable_floor_names_nearest(run, tmp_path):
    status, out, err = run("--budget", "psnr=119", "-o", str(tmp_path / "calibration"))
    assert (status, out) == (2, "")
    assert "VIDC-BUDGET-UNREACHABLE" in err
    assert "is the least damaging group that saves time" in err
    assert not (tmp_path / "calibration.toml").exists()


def test_the_default_recipe_is_the_target_s():
    assert make_plan(None, LONGLIVE, H100, None).recipe.name == "fp8-linear"
    assert make_plan(None, LONGLIVE, targets()["t4"], None).recipe.name == "int8-static"
    with pytest.raises(UnavailableError, match="VIDC-RECIPE-NONE"):
        make_plan(None, LONGLIVE, replace(H100, recipes=type(H100.recipes)()), None)


def test_rejects_recipe_without_choice(tmp_path):
    file = tmp_path / "high.toml"
    high = recipe_of(LinearFormat())
    file.write_text(recipe_toml(Recipe("high", "nothing", high.linear, ())))
    with pytest.raises(UsageError, match=r"VIDC-SENSITIVITY-GROUPS.*nothing to rank"):
        make_plan(str(file), LONGLIVE, H100, None)
    # Ranked it can be, where it saves no time.
    assert len(make_plan("int8-weight-only", LONGLIVE, H100, None).groups) == 150
    with pytest.raises(UsageError, match=r"VIDC-SENSITIVITY-GROUPS.*save time"):
        make_plan("int8-weight-only", LONGLIVE, H100, Budget("psnr", 30.0))


def kept_in_8_bits(tmp_path, linear, attention):
    file = tmp_path / "kept.toml"
    file.write_text(
        f'description = "both"\n[[linear]]\nlayers = ["blocks.**"]\nweights = "{linear}"\n'
        f'activations = "{linear}"\n'
        f'[[attention]]\nlayers = ["blocks.**"]\nkeys = "{attention}"\nvalues = "{attention}"\n'
    )
    return str(file)


def test_rejects_budget_for_unsupported_recipe(tmp_path):
    budget, aoti = Budget("psnr", 30.0), Setting("aoti", "--backend")
    tiny = resolve("tiny", gpu="cpu", environ={}).model
    attention = tmp_path / "attention.toml"
    attention.write_text(
        'description = "all"\n[[linear]]\nlayers = ["blocks.**"]\nweights = "int8"\n'
        'activations = "int8"\n[[attention]]\nlayers = ["blocks.**"]\nqueries = "int8"\n'
        'keys = "int8"\nvalues = "int8"\n'
    )
    with pytest.raises(UnavailableError, match=r"VIDC-RECIPE-LOWERING.*attn1 in 8 bits"):
        make_plan(str(attention), tiny, targets()["cpu"], budget)
    # This one holds it, in float32, so that there is no time to be saved.
    with pytest.raises(UsageError, match="VIDC-SENSITIVITY-GROUPS"):
        make_plan(str(attention), tiny, targets()["cpu"], budget, aoti)
    assert make_plan(str(attention), tiny, targets()["cpu"], None, aoti).groups
    # What nobody chooses from is ranked all the same.
    assert make_plan(str(attention), tiny, targets()["cpu"], None).groups


@pytest.mark.parametrize(("linear", "attention", "fits"), [("fp8", "int8", 1), ("int8", "fp8", 0)])
def test_rejects_budget_for_mixed_precisions(tmp_path, linear, attention, fits):
    file = kept_in_8_bits(tmp_path, linear, attention)
    if fits:
        assert make_plan(file, LONGLIVE, H100, Budget("psnr", 30.0)).groups
    else:
        with pytest.raises(UsageError, match=r"VIDC-RECIPE-PRECISION.*kept.*together"):
            make_plan(file, LONGLIVE, H100, Budget("psnr", 30.0))
