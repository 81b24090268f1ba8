"""Makes of shipped weights what a training goes on from.

    PYTHONPATH=benchmarks python -m demo_model.import_weights configs/demo --out out/demo

Leaves ``vae`` and ``few`` under the output folder as ``train_vae`` and ``train_few_step`` would.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from demo_model.export_weights import DIGESTS, FILES
from demo_model.train_flow import trainable
from demo_model.train_vae import STATISTICS
from demo_model.training import checkpoint
from demo_model.training.ema import Ema
from demo_model.training.networks import PRESET, Sizes, demo_sizes, new_vae
from demo_model.training.optimizer import optimizer_for


def import_weights(weights: Path, out: Path, sizes: Sizes) -> None:
    """Writes the checkpoints.

    Args:
        weights: what ``export_weights`` left.
        out: holds a folder for each of the two parts then.
        sizes: of the model.

    Raises:
        FileNotFoundError: a file of the weights is missing.
        RuntimeError: they are of another network.
    """
    vae, latents = new_vae(sizes), trainable(sizes)
    text = latents["text_encoder"].get_submodule("text_encoder")
    parts = {"vae": vae, "transformer": latents["transformer"], "text_encoder": text}
    for part, module in parts.items():
        tensors = load_file(weights / FILES[part])
        module.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    facts = json.loads((weights / DIGESTS).read_text())["trained"]
    _save(out / "vae", vae, facts["vae"])
    statistics = {"mean": sizes.config.vae.latents_mean, "std": sizes.config.vae.latents_std}
    (out / "vae" / STATISTICS).write_text(json.dumps(statistics, indent=1) + "\n")
    _save(out / "few", latents, {**facts["latents"], **statistics})


def _save(folder: Path, network: nn.Module, state: Mapping[str, object]) -> None:
    training = checkpoint.Training(network, Ema(network), optimizer_for(network))
    checkpoint.save(folder / "checkpoint", training, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default=PRESET)
    arguments = parser.parse_args()
    import_weights(arguments.weights, arguments.out, demo_sizes(arguments.preset))


if __name__ == "__main__":
    main()
