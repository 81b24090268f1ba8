"""Switches the prompt in the middle of a stream.

python examples/switch_prompt.py out/demo out.mp4 \
  --prompts "a red square moving left over grass" "a blue square moving left over grass"
"""

import argparse

from vidc.runtime import load
from vidc.runtime.video import open_writer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("output")
    parser.add_argument("--prompts", nargs="+", required=True)
    parser.add_argument("--blocks", type=int, default=4, help="blocks of each prompt")
    arguments = parser.parse_args()

    with load(arguments.bundle) as bundle, open_writer(arguments.output, fps=16) as writer:
        session = bundle.session(seed=7)
        for prompt in arguments.prompts:
            # On a new stream it sets the first prompt; later it also recomputes the window.
            session.switch_prompt(prompt)
            for frames in session.stream(blocks=arguments.blocks):
                writer.write(frames.cpu())
    print(f"{arguments.output}: {writer.count} frames")


if __name__ == "__main__":
    main()
