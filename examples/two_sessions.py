"""Generates two streams in two threads on one set of weights.

python examples/two_sessions.py out/demo \
  --prompts "a red square moving left over grass" "a green star moving down over sand"

Each session has its own states. One session belongs to one thread at a time: a second thread gets
VIDC-SESSION-BUSY.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import torch

from vidc.runtime import Bundle, load


def generate(bundle: Bundle, prompt: str, seed: int, blocks: int) -> torch.Tensor:
    """Returns the frames of one stream, uint8 ``[frames, H, W, 3]`` on the CPU."""
    with bundle.session(seed=seed) as session:
        session.prompt(prompt)
        return torch.cat([frames.cpu() for frames in session.stream(blocks=blocks)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--prompts", nargs=2, required=True)
    parser.add_argument("--blocks", type=int, default=3)
    arguments = parser.parse_args()

    with load(arguments.bundle) as bundle, ThreadPoolExecutor() as threads:
        streams = [
            threads.submit(generate, bundle, prompt, seed, arguments.blocks)
            for seed, prompt in enumerate(arguments.prompts)
        ]
        together = [stream.result() for stream in streams]
        alone = [
            generate(bundle, prompt, seed, arguments.blocks)
            for seed, prompt in enumerate(arguments.prompts)
        ]
    equal = all(torch.equal(*pair) for pair in zip(together, alone, strict=True))
    print(f"two streams side by side equal each alone: {equal}")


if __name__ == "__main__":
    main()
