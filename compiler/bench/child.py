"""Process of one cold start: starts the GPU while torch is imported, as ``vidc.runtime.load`` does.

``vidc.compiler.bench.processes`` describes its arguments and its output.
"""

import sys
from pathlib import Path

from vidc.plugins.errors import VidcError
from vidc.runtime.start import start_gpu

if __name__ == "__main__":
    bundle, stream, seed, *decoder = sys.argv[1:]
    start_gpu(bundle)
    from vidc.compiler.bench.processes import main

    try:
        main(Path(bundle), stream, int(seed), *decoder)
    except VidcError as error:
        sys.exit(str(error))
