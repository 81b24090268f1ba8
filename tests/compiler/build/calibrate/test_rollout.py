"""Ranges of a rollout: every tensor, against the inputs of the model's own calls."""

from collections import defaultdict

import pytest
import torch
from modelopt_here import needs_modelopt
from random_transformer import random_weights

from vidc.compiler.build.calibration_rollouts import Rollouts, scenario
from vidc.compiler.quantize.calibrated_tensors import tensor_shapes
from vidc.compiler.quantize.ranges import finished, merged
from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters import kv_ring
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.plugins.errors import GateError

pytestmark = needs_modelopt


def rollouts(model, precision="fp32", seed=0):
    dtype = PRECISIONS[precision]
    weights = {n: t.to(dtype) for n, t in random_weights(model.transformer, seed=1).items()}
    network = with_weights(model.parts["transformer"].network(precision), weights)
    parts = model.parts["transformer"].components(network)
    engines = {name: EagerEngine(part) for name, part in parts.items()}
    return network, Rollouts(model, engines, torch.device("cpu"), seed)


@pytest.fixture(scope="module")
def prompts(stream):
    return torch.randn(2, *stream.text, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def played(model, stream, prompts):
    """The ranges, and what the model was given meanwhile, by other means than the observer's."""
    network, made = rollouts(model)
    given = defaultdict(list)
    patch = pytest.MonkeyPatch()

    def spy(name, original, index):
        def called(*args):
            given[name].append(args[index].clone())
            return original(*args)

        patch.setattr(kv_ring, name, called)

    spy("ring_write", kv_ring.ring_write, 1)
    spy("ring_attention", kv_ring.ring_attention, 0)
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(
                lambda m, i, o, name=name: given[name].append(i[0].clone())
            )
    network.condition_embedder.time_proj.register_forward_hook(
        lambda *_: given["passes"].append(len(given["ring_write"]))
    )
    with patch.context():
        ranges = made.ranges(0, prompts)
    patch.undo()
    return network, finished(merged(made.weights(), ranges)), given


def test_there_is_every_tensor_and_no_other(model, stream, played):
    _, found, _ = played
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    assert shapes == tensor_shapes(model, 2 + len(stream.timesteps))
    assert all(value.isfinite().all() for value in found.values())


def test_inputs_of_linears_are_those_that_they_were_given(played):
    network, found, given = played
    names = [n for n, m in network.named_modules() if isinstance(m, torch.nn.Linear)]
    for name in names:
        expected = torch.stack([x.abs().flatten(0, -2).amax(0) for x in given[name]]).amax(0)
        assert torch.equal(found[f"{name}.input"].amax(0), expected), name


def test_means_and_ends_of_inputs_are_over_all_passes(played):
    network, found, given = played
    for name, module in network.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        rows = torch.cat([x.flatten(0, -2) for x in given[name]])
        assert torch.equal(found[f"{name}.input.low"], rows.amin(0)), name
        assert torch.equal(found[f"{name}.input.high"], rows.amax(0)), name
        mean = rows.double().mean(0).float()
        torch.testing.assert_close(found[f"{name}.input.mean"], mean, rtol=1e-5, atol=1e-6)


def test_weights_are_ranged_by_output_channel(played):
    network, found, _ = played
    weight = network.get_submodule("blocks.1.ffn.net.2").weight
    assert torch.equal(found["blocks.1.ffn.net.2.weight"], weight.abs().amax(1))


def test_queries_keys_and_values_are_those_of_attention(model, played):
    _, found, given = played
    # A pass writes keys and values of each layer; it attends in each but, where clean, the last.
    last = model.transformer.layers - 1
    updates = given["ring_write"]
    for layer in range(model.transformer.layers):
        keys = torch.cat(updates[2 * layer :: 2 * (last + 1)], 1)
        values = torch.cat(updates[2 * layer + 1 :: 2 * (last + 1)], 1)
        for part, tensor in (("k", keys), ("v", values)):
            name = f"blocks.{layer}.attn1.{part}"
            assert torch.equal(found[name].amax(0), tensor.abs().amax((0, 1)))
            assert torch.equal(found[f"{name}.low"], tensor.amin((0, 1)))
            assert torch.equal(found[f"{name}.high"], tensor.amax((0, 1)))
    everything = torch.cat(given["ring_attention"], 1).abs().amax((0, 1))
    queries = [found[f"blocks.{layer}.attn1.q"].amax(0) for layer in range(last + 1)]
    assert torch.equal(torch.stack(queries).amax(0), everything)


def test_the_mean_is_that_of_clean_keys(model, stream, played):
    _, found, given = played
    passes, layers_ = len(stream.timesteps), model.transformer.layers
    writes = [given["ring_write"][i : i + 2 * layers_] for i in given["passes"]]
    # A block's clean pass follows its steps; the switch recomputes keys before its first block's.
    at = scenario(model).switch_after * (passes + 1)
    clean = [*writes[passes : at : passes + 1], writes[at], *writes[at + 1 + passes :: passes + 1]]
    assert len(clean) == scenario(model).blocks + 1
    assert len(writes) == scenario(model).blocks * (passes + 1) + 1
    keys = torch.cat([write[0] for write in clean], 1).double().mean((0, 1)).float()
    torch.testing.assert_close(found["blocks.0.attn1.k.mean"], keys, rtol=0, atol=1e-6)
    values = torch.cat([write[3] for write in clean], 1).double().mean((0, 1)).float()
    torch.testing.assert_close(found["blocks.1.attn1.v.mean"], values, rtol=0, atol=1e-6)


def test_each_tensor_has_the_groups_that_run_it(played):
    _, found, _ = played

    def run(name):
        return found[name].flatten(1).any(1).tolist()

    text, steps, clean = [True, False], [True] * 4, [True]
    assert run("blocks.0.attn2.to_k.input") == [text[0], *[False] * 5]
    assert run("condition_embedder.text_embedder.linear_1.input") == [text[0], *[False] * 5]
    assert run("blocks.0.attn1.to_q.input") == [False, *steps, *clean]
    assert run("blocks.0.attn1.k") == [False, *steps, *clean]
    # The clean pass ends at the last layer's keys and values.
    assert run("blocks.1.attn1.to_k.input") == [False, *steps, True]
    assert run("blocks.1.attn1.v") == [False, *steps, True]
    assert run("blocks.1.attn1.q") == [False, *steps, False]
    assert run("proj_out.input") == [False, *steps, False]


def test_groups_tell_timesteps_apart(played):
    _, found, _ = played
    rows = found["blocks.0.attn1.to_q.input"][1:]
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)


def test_a_rollout_fills_the_window_moves_on_and_switches(model, stream):
    played = scenario(model)
    assert played.blocks * stream.block == stream.window + 2 * stream.block
    assert stream.window < played.switch_after * stream.block
    assert stream.recached(played.switch_after * stream.block) == stream.window - stream.sink
    assert f"recache_{stream.window - stream.sink}" in model.components


def test_modelopt_s_own_calibration_finds_the_same(model, stream, prompts, played):
    import modelopt.torch.quantization as mtq

    _, found, _ = played
    network, made = rollouts(model)
    fp8 = {"num_bits": (4, 3), "axis": None}
    config = {
        "quant_cfg": [
            {"quantizer_name": "*", "enable": False},
            {"quantizer_name": "*blocks.*input_quantizer", "cfg": fp8},
            {"quantizer_name": "*blocks.*weight_quantizer", "cfg": fp8 | {"axis": 0}},
        ],
        "algorithm": "max",
    }
    mtq.quantize(network, config, lambda _: made.ranges(0, prompts))
    linears = {n: m for n, m in network.named_modules() if isinstance(m, torch.nn.Linear)}
    blocks = {name: m for name, m in linears.items() if name.startswith("blocks.")}
    assert len(blocks) == 10 * model.transformer.layers
    for name, module in blocks.items():
        assert module.input_quantizer.amax == found[f"{name}.input"].max(), name
        assert torch.equal(module.weight_quantizer.amax.flatten(), found[f"{name}.weight"]), name


def test_noise_is_the_prompt_s_own(model, stream, prompts):
    _, made = rollouts(model)
    _, again = rollouts(model)
    one, two = made.ranges(1, prompts), made.ranges(0, prompts)
    same = again.ranges(1, prompts)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["sum/blocks.0.attn1.k"], two["sum/blocks.0.attn1.k"])


def test_in_bf16_ranges_are_nearly_those_of_float32(model, stream, prompts, played):
    _, found, _ = played
    _, made = rollouts(model, "bf16")
    ranges = finished(merged(made.weights(), made.ranges(0, prompts)))
    for name, value in ranges.items():
        assert value.dtype == torch.float32
        if not name.endswith((".mean", ".low", ".high")):
            assert value.max() == pytest.approx(found[name].max(), rel=0.25), name


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_value_that_is_not_finite_is_named(model, stream, prompts, value):
    network, made = rollouts(model)
    network.get_submodule("blocks.1.ffn.net.0.proj").bias[3] = value
    with pytest.raises(GateError, match=r"blocks\.1\.ffn\.net\.2\.input in group step\.0") as error:
        made.ranges(0, prompts)
    assert error.value.code == "VIDC-CALIBRATION-NONFINITE"
    # The network is left as it was.
    assert not any(module._forward_pre_hooks for module in network.modules())
