"""Q and DQ nodes of the table of constructs in TensorRT-RTX's parser."""

import onnx
import pytest

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.backends import DEFAULT_OPTIONS, CompileOptions
from vidc.compiler.backends.tensorrt.build import build_plan
from vidc.compiler.backends.tensorrt.built_layers import Log, built_layers, new_builder
from vidc.compiler.backends.tensorrt.network import Network
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.config.targets import targets
from vidc.plugins.errors import BuildError

RTX = PRODUCTS["tensorrt_rtx"]
TEXT = """
<ir_version: 10, opset_import: ["" : 24]>
toy (float[64, 64] x, float[64, 64] w, float given) => (float[64, 64] y)
<{scale}, {zero}> {{
  [q_x] b = QuantizeLinear{q}
  [dq_x] c = DequantizeLinear{dq}
  [q_w] d = QuantizeLinear<output_dtype = {steps}>(w, one)
  [dq_w] e = DequantizeLinear(d, one)
  [product] y = MatMul(c, e)
}}
"""


class Parsed:
    """A graph that the parser took, or the reason that it did not."""

    def __init__(self, q="(x, s, z)", dq="(b, s, z)", scale="float s = {0.5}", zero="0", steps=3):
        kind = "uint8" if zero.startswith("u") else "int8"
        text = TEXT.format(
            q=q, dq=dq, scale=f"{scale}, float one = {{0.5}}", steps=steps,
            zero=f"{kind} z = {{{zero.removeprefix('u')}}}",
        )  # fmt: skip
        module = RTX.module()
        log = Log(module)
        builder = new_builder(module, log)
        definition = builder.create_network(0)
        parser = module.OnnxParser(definition, log.logger)
        taken = parser.parse(onnx.parser.parse_model(text).SerializeToString())
        self.refused = None if taken else parser.get_error(0).desc()
        self.network = Network(builder, definition, log, (parser,))
        self.module = module

    @property
    def steps(self):
        """The type that x is rounded to."""
        layers = [self.network.definition.get_layer(i)
                  for i in range(self.network.definition.num_layers)]  # fmt: skip
        (first, *_) = [layer for layer in layers if layer.type == self.module.LayerType.QUANTIZE]
        return first.get_output(0).dtype

    @property
    def plan_is_in_8_bits(self):
        """True if the plan's matmul is in 8 bits."""
        return self.is_in_8_bits(DEFAULT_OPTIONS)

    def is_in_8_bits(self, options):
        """The same of a plan that is built by other means."""
        plan = build_plan("toy", self.network, RTX, targets()["rtx4090"], options)
        return built_layers(plan, self.network.log, RTX).in_8_bits("product")


def test_constant_scales_are_products_in_8_bits():
    assert Parsed().plan_is_in_8_bits


EVERY = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")


@pytest.mark.parametrize(("steps", "capabilities"), [(17, EVERY[3:]), (3, EVERY[1:])])
def test_a_product_is_in_8_bits_in_a_plan_for_several_gpus(steps, capabilities):
    parsed = Parsed(f"<output_dtype = {steps}>(x, s)", "(b, s)", steps=steps)
    assert parsed.is_in_8_bits(CompileOptions(capabilities=capabilities))


def test_no_fp8_plan_for_gpu_without_fp8():
    parsed = Parsed("<output_dtype = 17>(x, s)", "(b, s)", steps=17)
    with pytest.raises(BuildError, match="sm80"):
        parsed.is_in_8_bits(CompileOptions(capabilities=("8.0", "8.9")))


def test_a_given_scale_is_taken_and_the_product_is_not_in_8_bits():
    parsed = Parsed("(x, given, z)", "(b, given, z)")
    assert parsed.refused is None
    assert not parsed.plan_is_in_8_bits


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scale": "float s = {-0.5}"}, "Scale coefficients must all be positive"),
        ({"scale": "float s = {0.0}"}, "Scale coefficients must all be positive"),
        (
            {"q": "(x, s)", "dq": "(b, s)", "scale": "float[3] s = {0.5, 0.5, 0.5}"},
            "number of scales",
        ),
        ({"zero": "3"}, "Non-zero zero point is not supported"),
        ({"zero": "u128"}, "Non-zero zero point is not supported"),
    ],
)
def test_refuses_what_the_table_says(changes, says):
    assert says in Parsed(**changes).refused


@pytest.mark.parametrize("changes", [{"q": "(x, s)", "dq": "(b, s)"}, {"zero": "u0"}])
def test_unsigned_steps_are_taken_for_signed_ones(changes):
    parsed = Parsed(**changes)
    assert parsed.refused is None
    assert parsed.steps == parsed.module.int8


@pytest.mark.parametrize("saturate", [0, 1])
def test_saturate_is_ignored(saturate):
    """The kernel that rounds is the same one, by the digest in its name."""
    q = f"<output_dtype = 17, saturate = {saturate}>(x, s)"
    parsed = Parsed(q, "(b, s)", steps=17)
    plan = build_plan("toy", parsed.network, RTX, targets()["rtx4090"], DEFAULT_OPTIONS)
    layers = built_layers(plan, parsed.network.log, RTX).layers
    tactics = {name: layer.tactic for layer in layers for name in layer.nodes}
    # Of the weight, Q has no such attribute.
    assert tactics["q_x"] == tactics["q_w"]
