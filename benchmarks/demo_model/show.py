"""A picture of what a bundle makes: a row under the first prompt, a row after a switch.

PYTHONPATH=benchmarks python -m demo_model.show out/demo/bundle switch.png \
    --prompt "a red square moving left over grass" --later "a blue square moving left over grass"
"""

import argparse
from pathlib import Path

import torch
from PIL import Image

from demo_model.clip import frames_of
from demo_model.contact_sheet import contact_sheet
from demo_model.evaluation.videos import Script, videos
from vidc.runtime import load
from vidc.runtime.bundle import Bundle


def picture(bundle: Bundle, script: Script, switch: int, columns: int, seed: int) -> Image.Image:
    """Frames of as many blocks before the switch as after it.

    Args:
        bundle: with a text encoder.
        script: both of its prompts.
        switch: blocks before the later prompt, at least one.
        columns: frames of a row, evenly spaced.
        seed: of the noise.
    """
    (video,) = videos(bundle, [script], 2 * switch, seed, switch)
    turn = frames_of(switch * bundle.spec.block)
    rows = torch.stack([_spread(part, columns) for part in (video[:, :turn], video[:, turn:])])
    return contact_sheet(rows, [script.prompt, script.later or script.prompt], columns)


def _spread(video: torch.Tensor, columns: int) -> torch.Tensor:
    chosen = torch.linspace(0, video.shape[1] - 1, columns).round().long()
    return video[:, chosen].cpu()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--later", required=True, help="the prompt after the switch")
    parser.add_argument("--switch", type=int, default=3, help="blocks before it")
    parser.add_argument("--columns", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    script = Script(options.prompt, options.later)
    bundle = load(options.bundle)
    picture(bundle, script, options.switch, options.columns, options.seed).save(options.output)


if __name__ == "__main__":
    main()
