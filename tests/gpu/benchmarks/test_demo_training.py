"""Steps of the demo's training by CUDA graphs."""

import pytest
import torch
from demo_model.networks import Sizes, new_vae
from demo_model.stages import FlowStage, Plan, SelfStage

PLAN = Plan(clips=2, first_blocks=4, shelves=2, shelf_clips=4, shelf_first_blocks=8)


@pytest.mark.parametrize("kind", [FlowStage, SelfStage])
def test_a_replayed_step_has_the_gradients_of_a_step_without_a_graph(hopper, kind):
    sizes, facts = Sizes.read(), {"mean": [0.0] * 16, "std": [1.0] * 16}
    done = {"vae": {"ema": new_vae(sizes).state_dict(), "facts": facts}}
    done["flow"] = {"ema": FlowStage(sizes, PLAN, "cuda", 0, done).network.state_dict()}
    stage = kind(sizes, PLAN, "cuda", 0, done)
    head = stage.network.get_submodule("transformer").get_parameter("proj_out.weight")
    torch.nn.init.normal_(head, std=0.02)
    steps, found = range(6), []  # Both shelves; a shelf's first step is run, the others replayed.
    for _ in range(3):
        for step in steps:
            loss = stage.backward(step, 0.5)["loss"]
            gradients = [weight.grad for weight in stage.network.parameters()]
            found.append([each.clone() for each in (loss, *gradients)])
    for plain, *replays in zip(found[:6], found[6:12], found[12:], strict=True):
        for replayed in replays:
            for one, other in zip(plain, replayed, strict=True):
                assert float((other - one).norm()) <= 1e-2 * float(one.norm()) + 1e-6
