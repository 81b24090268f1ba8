"""Writes a stream to a video file while it is generated.

python examples/stream_to_file.py out/demo out.mp4 --prompt "a red square moving left over grass"
"""

import argparse

from vidc.runtime import load
from vidc.runtime.video import open_writer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("output")
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--blocks", type=int, default=4)
    arguments = parser.parse_args()

    with load(arguments.bundle) as bundle, open_writer(arguments.output, fps=16) as writer:
        session = bundle.session(seed=7)
        session.prompt(arguments.prompt)
        before = None
        for frames in session.stream(blocks=arguments.blocks):
            # On a GPU the copy to the host overlaps the next block.
            copied = session.fetch(frames)
            if before is not None:
                writer.write(before())
            before = copied
        if before is not None:
            writer.write(before())
    print(f"{arguments.output}: {writer.count} frames")


if __name__ == "__main__":
    main()
