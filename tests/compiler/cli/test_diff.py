import json
from dataclasses import replace

import torch
from entries import file_entries

from vidc.runtime.manifest import MANIFEST_NAME, read_manifest, write_manifest


def test_equal_bundles_are_the_same(vidc, make_bundle):
    a, b = str(make_bundle("a")), str(make_bundle("b"))
    assert vidc("diff", a, b) == (0, "no differences\n", "")
    assert json.loads(vidc("diff", a, b, "--json")[1]) == {
        "schema": 1,
        "kind": "bundle",
        "same": True,
        "changes": {},
        "weights": {},
    }


def test_a_difference_is_a_result_and_no_failure(vidc, make_bundle):
    a = str(make_bundle("a", {"w": torch.ones(4)}))
    b = str(make_bundle("b", {"w": torch.full((4,), 1.5)}, stages={"export:denoise": "f" * 64}))
    status, out, err = vidc("diff", a, b)
    assert (status, err) == (0, "")
    assert f"stages\n  export:denoise: {'e' * 12} -> {'f' * 12}\n" in out
    assert "values of transformer\n  1 of 1 tensors differ; largest relative L2 0.5, in w\n" in out
    status, out, _ = vidc("diff", a, b, "--json")
    document = json.loads(out)
    assert (status, document["same"]) == (0, False)
    assert document["changes"]["stages"] == [
        {"name": "export:denoise", "old": "e" * 64, "new": "f" * 64}
    ]
    assert document["weights"]["transformer"]["relative_l2"] == 0.5


def test_graphs_are_compared(vidc, make_graph):
    a, b = str(make_graph("a.onnx")), str(make_graph("b.onnx", operator="Neg"))
    assert vidc("diff", a, a)[1] == "no differences\n"
    assert "operators\n  Relu: 1 -> none\n  Neg: none -> 1\n" in vidc("diff", a, b)[1]


def test_things_of_two_kinds_are_not_compared(vidc, make_bundle, make_graph):
    status, out, err = vidc("diff", str(make_bundle()), str(make_graph()))
    assert (status, out) == (2, "")
    assert "VIDC-DIFF-KINDS" in err


def test_a_damaged_bundle_is_refused(vidc, make_bundle):
    a, b = make_bundle("a"), make_bundle("b")
    (b / "extra").touch()
    status, _, err = vidc("diff", str(a), str(b))
    assert status == 1
    assert "VIDC-BUNDLE-EXTRA" in err


def with_form(bundle, form: str, milliseconds: float) -> str:
    """Writes the chosen form of one convolution of ``denoise`` into a bundle."""
    choice = {
        "form": form,
        "decided": "measured",
        "reason": "",
        "times_ms": {form: milliseconds},
        "at_least_ms": {},
        "device": "NVIDIA H100",
        "build": "torch 2.11.0",
    }
    document = {"schema": 1, "choices": {"8 > 8, 3 frames of 4x4": choice}}
    (bundle / "denoise.convolutions.json").write_text(json.dumps(document))
    manifest = read_manifest(bundle)
    (bundle / MANIFEST_NAME).unlink()
    write_manifest(replace(manifest, files=file_entries(bundle)), bundle)
    return str(bundle)


def test_other_forms_of_convolutions_are_told_with_both_times(vidc, make_bundle):
    a = with_form(make_bundle("a"), "conv3d", 0.4)
    b = with_form(make_bundle("b"), "F(3, 3)", 0.3)
    assert vidc("diff", a, b)[1] == (
        "convolutions\n  denoise, 8 > 8, 3 frames of 4x4: "
        "conv3d measured (conv3d 0.4 ms) -> F(3, 3) measured (F(3, 3) 0.3 ms)\n"
    )


def test_other_times_of_the_same_forms_are_no_difference(vidc, make_bundle):
    a = with_form(make_bundle("a"), "conv3d", 0.4)
    b = with_form(make_bundle("b"), "conv3d", 0.3)
    assert vidc("diff", a, b)[1] == "no differences\n"
