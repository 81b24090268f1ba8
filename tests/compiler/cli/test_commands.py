import json
import tomllib

import pytest
from click.shell_completion import ShellComplete

from vidc.compiler.cli import doctor
from vidc.compiler.cli.group import root
from vidc.compiler.config.presets import load_preset, preset_document, preset_names
from vidc.compiler.doctor.probes import Finding, Status
from vidc.compiler.store.store import Store
from vidc.plugins.installation import install_extra


def test_presets_are_listed_with_their_descriptions(vidc):
    status, out, err = vidc("presets", "list")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(preset_names())
    status, out, _ = vidc("presets", "list", "--json")
    document = json.loads(out)
    assert document["schema"] == 1
    assert [preset["name"] for preset in document["presets"]] == list(preset_names())


def test_a_preset_is_shown_as_toml_and_as_json(vidc):
    expected = preset_document(load_preset("self-forcing-1.3b"))
    _, out, _ = vidc("presets", "show", "self-forcing-1.3b")
    assert tomllib.loads(out) == expected
    _, out, _ = vidc("presets", "show", "self-forcing-1.3b", "--json")
    assert json.loads(out) == {"schema": 1, "name": "self-forcing-1.3b", **expected}


def test_a_code_is_explained_in_any_case(vidc):
    status, out, _ = vidc("explain", "vidc-config-sizes")
    assert status == 0
    assert out.startswith("VIDC-CONFIG-SIZES: Sizes that cannot work\n\nHeight and width")
    _, out, _ = vidc("explain", "VIDC-CONFIG-SIZES", "--json")
    assert json.loads(out)["title"] == "Sizes that cannot work"


def test_an_unknown_code_suggests_the_nearest(vidc):
    status, out, err = vidc("explain", "VIDC-CONFIG-SIZE")
    assert (status, out) == (2, "")
    assert "did you mean 'VIDC-CONFIG-SIZES'?" in err
    assert len(err.splitlines()) == 2
    assert max(map(len, err.splitlines())) < 100


def test_a_code_is_explained_without_its_start(vidc):
    assert vidc("explain", "config-sizes")[1] == vidc("explain", "VIDC-CONFIG-SIZES")[1]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_prints_the_shell_s_script(vidc, shell):
    status, out, err = vidc("completion", shell)
    assert (status, err) == (0, "")
    assert f"_VIDC_COMPLETE={shell}_complete" in out


FROM_DISK = "file"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pre", {"presets"}),
        ("build lo", {"longlive-1.3b", "longlive-1.3b-taehv", "low_memory"}),
        ("export ti", {"tiny"}),
        ("calibrate ti", {"tiny"}),
        ("presets show ti", {"tiny"}),
        ("build presets.d/", FROM_DISK),
        ("build --gpu h", {"h100", "h200"}),
        ("build --gpu au", {"auto"}),
        ("build --precision fp", {"fp32", "fp16", "fp8"}),
        ("build --backend to", {"torch_tensorrt"}),
        ("build --backend nothing", set()),
        ("build --recipe kv-", {"kv-fp8", "kv-int8"}),
        ("build --recipe ./", FROM_DISK),
        ("calibrate --recipe kv-", {"kv-fp8", "kv-int8"}),
        ("calibrate --for cp", {"cpu"}),
        ("explain vidc-cli-", {"VIDC-CLI-CODE", "VIDC-CLI-STDOUT", "VIDC-CLI-USAGE"}),
    ],
)
def test_completion_knows_names(words, expected):
    *before, incomplete = words.split()
    found = ShellComplete(root, {}, "vidc", "_VIDC_COMPLETE").get_completions(before, incomplete)
    if expected == FROM_DISK:
        assert [item.type for item in found] == [FROM_DISK]
    else:
        assert {item.value for item in found} == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(Status.GOOD, 0), (Status.MISSING, 0), (Status.WARNING, 0), (Status.BROKEN, 3)],
)
def test_doctor_fails_only_on_broken_findings(vidc, monkeypatch, status, expected):
    monkeypatch.setattr(doctor, "examine", lambda: [Finding("disk", status, "full", "empty it")])
    code, out, _ = vidc("doctor")
    assert code == expected
    assert "disk:\n  empty it" in out
    code, out, _ = vidc("doctor", "--json")
    assert code == expected
    assert json.loads(out) == {
        "schema": 1,
        "good": status is not Status.BROKEN,
        "findings": [
            {"name": "disk", "status": status.value, "detail": "full", "hint": "empty it"}
        ],
    }


@pytest.fixture
def entry(cache_folder):
    """A result of 5 bytes in the cache."""
    with Store(cache_folder) as store:
        found, _ = store.obtain(
            {"stage": "export"}, lambda out: (out / "graph").write_bytes(b"graph") and None, print
        )
    return found


def test_the_cache_lists_its_results(vidc, cache_folder, entry):
    _, out, _ = vidc("cache", "ls", "--json")
    document = json.loads(out)
    assert document["root"] == str(cache_folder)
    assert [(e["stage"], e["key"], e["bytes"]) for e in document["entries"]] == [
        ("export", entry.key, 5)
    ]
    status, out, _ = vidc("cache", "ls")
    assert status == 0
    assert out.startswith(f"export  {entry.key[:12]}")


def test_an_empty_cache_is_listed_and_verified(vidc, cache_folder):
    assert vidc("cache", "ls")[:2] == (0, f"0 B in 0 results under {cache_folder}\n")
    assert vidc("cache", "verify")[0] == 0


def test_a_damaged_result_fails_the_verification_until_it_is_removed(vidc, entry):
    assert vidc("cache", "verify")[0] == 0
    (entry.output / "graph").write_bytes(b"grapf")
    status, out, err = vidc("cache", "verify", "--json")
    assert status == 1
    assert "VIDC-CACHE-DAMAGED" in err
    document = json.loads(out)
    assert not document["passed"]
    assert [damage["path"] for damage in document["damaged"]] == [str(entry.path)]
    assert vidc("cache", "verify", "--remove")[0] == 0
    assert not entry.path.exists()


def test_prune_removes_selected_results(vidc, entry):
    assert vidc("cache", "prune")[0] == 2
    assert vidc("cache", "prune", "--older-than", "1")[0] == 0
    assert vidc("cache", "prune", "--max-gb", "1")[0] == 0
    assert entry.path.exists()
    status, out, _ = vidc("cache", "prune", "--max-gb", "0", "--json")
    assert status == 0
    assert [removed["key"] for removed in json.loads(out)["removed"]] == [entry.key]
    assert not entry.path.exists()


def test_clean_removes_every_result(vidc, entry):
    status, out, _ = vidc("cache", "clean", "--json")
    assert status == 0
    assert [removed["key"] for removed in json.loads(out)["removed"]] == [entry.key]
    assert not entry.path.exists()


def test_quiet_leaves_results_and_errors(vidc, entry):
    for arguments in (("-q", "cache", "ls"), ("cache", "ls", "-q"), ("cache", "ls", "--quiet")):
        status, out, err = vidc(*arguments)
        assert (status, err) == (0, "")
        assert entry.stage in out
    status, out, err = vidc("-q", "explain", "no-such-code")
    assert (status, out) == (2, "")
    assert "[VIDC-CLI-CODE]" in err


def test_doctor_ends_with_a_verdict(vidc, monkeypatch):
    found = [Finding("backend aoti", Status.GOOD, "builds for cpu")]
    monkeypatch.setattr(doctor, "examine", lambda: found)
    assert vidc("doctor")[1].splitlines()[-1] == "verdict: vidc works here; aoti builds for cpu"
    found.append(Finding("torch", Status.BROKEN, "not installed"))
    assert vidc("doctor")[1].splitlines()[-1] == "verdict: vidc does not work here: torch"


def test_doctor_says_once_what_several_packages_need(vidc, monkeypatch):
    hint = install_extra("build")
    lacks = [Finding(name, Status.MISSING, "not installed", hint) for name in ("onnx", "diffusers")]
    monkeypatch.setattr(doctor, "examine", lambda: lacks)
    lines = vidc("doctor")[1].splitlines()
    assert lines.count(f"  {hint}") == 1
    assert "onnx, diffusers:" in lines
    assert lines[-1].startswith("verdict: vidc runs finished bundles here, and builds none")
    assert lines[-1].endswith(hint)
