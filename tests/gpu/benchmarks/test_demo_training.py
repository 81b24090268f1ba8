"""Steps of the demo's training by CUDA graphs."""

import pytest
import torch
from demo_model.loop import Optimizer
from demo_model.networks import Sizes, new_vae
from demo_model.stages import FlowStage, Plan, SelfStage

PLAN = Plan(clips=2, first_blocks=4, shelves=2, shelf_clips=4, shelf_first_blocks=8)


@pytest.mark.parametrize("kind", [FlowStage, SelfStage])
def test_fused_and_replayed_steps_have_the_gradients_of_plain_ones(hopper, kind, monkeypatch):
    sizes, facts = Sizes.read(), {"mean": [0.0] * 16, "std": [1.0] * 16}
    done = {"vae": {"ema": new_vae(sizes).state_dict(), "facts": facts}}
    done["flow"] = {"ema": FlowStage(sizes, PLAN, "cuda", 0, done).network.state_dict()}
    head = done["flow"]["ema"]["transformer.proj_out.weight"]
    torch.nn.init.normal_(head, std=0.02, generator=torch.Generator("cuda").manual_seed(1))

    def found(rounds: int) -> list[list[torch.Tensor]]:
        """Losses and gradients of six steps over two shelves, each step repeated so often."""
        stage, steps = kind(sizes, PLAN, "cuda", 0, done), []
        stage.network.load_state_dict(done["flow"]["ema"])
        for step in [*range(6)] * rounds:
            loss = stage.backward(step, 0.5)["loss"]
            gradients = [weight.grad for weight in stage.network.parameters()]
            steps.append([each.clone() for each in (loss, *gradients)])
        return steps

    with monkeypatch.context() as patch, torch.compiler.set_stance("force_eager"):
        patch.setattr("demo_model.stages.Replayed", lambda work, pool: work)
        plain = found(1)
    for step, fused in enumerate(found(3)):
        for one, other in zip(plain[step % 6], fused, strict=True):
            assert float((other - one).norm()) <= 1e-2 * float(one.norm()) + 1e-6


def test_replayed_steps_of_the_optimizer_are_those_of_a_cpu(hopper):
    nets = {device: new_vae(Sizes.read()).to(device) for device in ("cpu", "cuda")}
    nets["cuda"].load_state_dict(nets["cpu"].state_dict())
    optimizers = {device: Optimizer(network) for device, network in nets.items()}
    for step in range(5):
        draws = torch.Generator().manual_seed(step)
        for pair in zip(*(network.parameters() for network in nets.values()), strict=True):
            gradient = torch.randn(pair[0].shape, generator=draws)
            gradient[0] = torch.nan if step == 3 else gradient[0]
            for weight in pair:
                weight.grad = gradient.to(weight.device)
        norms = [float(optimizer.step(1e-2 * (step + 1))) for optimizer in optimizers.values()]
        assert norms[1] == pytest.approx(norms[0], rel=1e-4, nan_ok=True)
    for name, weight in nets["cpu"].state_dict().items():
        moved = nets["cuda"].state_dict()[name].cpu()
        assert float((moved - weight).norm()) <= 2e-2 * float(weight.norm()) + 1e-6, name
