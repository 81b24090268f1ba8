import pytest
import torch
from outlier import Model, planted

from vidc.compiler.build.calibration_rollouts import Rollouts, rollout_inputs
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.artifact import Calibration, model_tables
from vidc.compiler.quantize.document import SCHEMA, Document, FileNote, PromptsNote
from vidc.compiler.quantize.document import Rollouts as RolloutsNote
from vidc.compiler.quantize.ranges import finished, merged
from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.models import with_weights


@pytest.fixture(scope="session")
def config():
    return resolve("tiny", gpu="cpu", environ={}).model


@pytest.fixture(scope="session")
def stream(config):
    return program_spec(config)


@pytest.fixture(scope="session")
def model(config, stream) -> Model:
    network = with_weights(config.parts["transformer"].network("fp32"), planted(config))
    parts = config.parts["transformer"].components(network)
    engines = {name: EagerEngine(part) for name, part in parts.items()}
    prompts = torch.randn(2, *stream.text, generator=torch.Generator().manual_seed(3))
    rollouts = Rollouts(config, engines, torch.device("cpu"), 0)
    ranges = finished(merged(rollouts.weights(), rollouts.ranges(0, prompts)))
    document = Document(
        SCHEMA, "ab" * 32, {}, model_tables(config), "fp32", "cpu",
        PromptsNote("embeddings", 1, "cd" * 32, ()), 0, RolloutsNote("max", 6, 5), config.passes(),
        {}, FileNote(0, ""),
    )  # fmt: skip
    inputs = [rollout_inputs(config, 0, 0, prompts)]
    return Model(config, network, engines, Calibration(document, ranges), inputs)
