#include "tensorrt_operators.h"

#include "../cuda/operators.h"
#include "tensorrt_ring_operators.h"

namespace vidc {
namespace {

const std::vector<DType> kFloats{DType::float32, DType::bfloat16, DType::float16};
const std::vector<DType> kFloat32{DType::float32};

DType dtype_attribute(const Attributes& attributes) {
  return dtype_named(attributes.get<std::string>("dtype"));
}

void check_dtype_attribute(const Checks& checks, const Attributes& attributes) {
  checks.output_dtype(dtype_attribute(attributes));
}

const TensorView* optional(const Views& inputs, size_t index) {
  return index < inputs.size() ? &inputs[index] : nullptr;
}

std::vector<Output> of_attribute(const Attributes& attributes) {
  return {{"output", dtype_attribute(attributes), 0, {}}};
}

Operator gelu_quantize_operator() {
  return {"gelu_quantize",
          {{"x", kFloats}, {"output_scale", kFloat32}, {"output_mean", kFloat32}},
          2,
          {text("dtype")},
          check_dtype_attribute,
          of_attribute,
          [](const Views& in, const Attributes& attributes) {
            check_gelu_quantize(in[0], dtype_attribute(attributes), optional(in, 1),
                                optional(in, 2));
          },
          [](const Views& in, const Attributes& attributes, void* const* out, void*,
             cudaStream_t stream) {
            gelu_quantize(in[0], dtype_attribute(attributes), optional(in, 1), optional(in, 2),
                          out[0], stream);
          }};
}

RingAttention16Bit views_16bit(const Views& in) { return {in[0], in[1], in[2], in[3]}; }

Operator ring_attention_16bit_operator() {
  return {
      "ring_attention_16bit",
      {{"query", {DType::bfloat16, DType::float16}},
       {"key_cache", {}, 0},
       {"value_cache", {}, 0},
       {"valid_length", {DType::int64}}},
      0,
      {},
      nullptr,
      [](const Attributes&) -> std::vector<Output> { return {{"output", DType::other, 0, {}}}; },
      [](const Views& in, const Attributes&) { check_ring_attention_16bit(views_16bit(in)); },
      [](const Views& in, const Attributes&, void* const* out, void*, cudaStream_t stream) {
        ring_attention_16bit(views_16bit(in), out[0], stream);
      }};
}

// Takes the views in the order of the inputs.
RingAttention8Bit views_8bit(const Views& in) {
  return {in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7], optional(in, 8)};
}

Operator ring_attention_8bit_operator() {
  return {"ring_attention_8bit",
          {{"query", {DType::float8_e4m3fn, DType::int8}},
           {"query_scale", kFloat32},
           {"key_cache", {}, 0},
           {"value_cache", {}, 0},
           {"key_scale", kFloat32},
           {"value_scale", kFloat32},
           {"value_mean", kFloat32},
           {"valid_length", {DType::int64}},
           {"output_scale", kFloat32}},
          1,
          {text("dtype")},
          [](const Checks&, const Attributes& attributes) {
            check_ring_attention_8bit_dtype(dtype_attribute(attributes));
          },
          of_attribute,
          [](const Views& in, const Attributes& attributes) {
            check_ring_attention_8bit(views_8bit(in), dtype_attribute(attributes));
          },
          [](const Views& in, const Attributes& attributes, void* const* out, void* workspace,
             cudaStream_t stream) {
            ring_attention_8bit(views_8bit(in), dtype_attribute(attributes), workspace,
                                out[0], stream);
          },
          [](const Views& in, const Attributes& attributes) {
            return ring_attention_8bit_workspace(views_8bit(in),
                                                 dtype_attribute(attributes));
          }};
}

}  // namespace

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all{
      gelu_quantize_operator(),
      qk_norm_rope_ring_write_operator(),
      qk_norm_rope_ring_write_static_operator(),
      ring_attention_16bit_operator(),
      ring_attention_8bit_operator(),
  };
  return all;
}

}  // namespace vidc
