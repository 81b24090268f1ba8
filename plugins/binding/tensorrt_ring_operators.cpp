#include "tensorrt_ring_operators.h"

#include "../cuda/operators.h"

namespace vidc {
namespace {

// Indices of the inputs.
enum {
  kQkv,
  kQueryWeight,
  kKeyWeight,
  kCos,
  kSin,
  kPosition,
  kKeyCache,
  kValueCache,
  kKeyScale,
  kValueScale,
  kKeyMean
};

const std::vector<DType> kFloat32{DType::float32};
const std::vector<Axis> kQueries{{kQkv, 0}, {kQkv, 1}, {kKeyCache, 2}, {kKeyCache, 3}};
const std::vector<Axis> kQueryScales{{kQkv, 0}, {kKeyCache, 2}, {kQkv, 1}};

std::vector<Input> inputs(const std::vector<DType>& of_qkv, const Input& key_cache) {
  return {{"qkv", of_qkv},
          {"query_weight", {}, kQkv},
          {"key_weight", {}, kQkv},
          {"cos", kFloat32},
          {"sin", kFloat32},
          {"position", {DType::int64}},
          key_cache,
          {"value_cache", {}, kKeyCache}};
}

std::vector<Input> inputs_8bit() {
  std::vector<Input> all =
      inputs({DType::bfloat16, DType::float16}, {"key_cache", {DType::float8_e4m3fn, DType::int8}});
  for (const char* name : {"key_scale", "value_scale", "key_mean"}) all.push_back({name, kFloat32});
  return all;
}

Output written(const char* name, int input) { return {name, DType::other, input, {}, input}; }

QkvToRing qkv_to_ring(const Views& in, const Attributes& attributes) {
  return {in[kQkv],
          in[kQueryWeight],
          in[kKeyWeight],
          in[kCos],
          in[kSin],
          in[kPosition],
          in[kKeyCache],
          in[kValueCache],
          attributes.get<int64_t>("sink"),
          attributes.get<float>("eps")};
}

bool quantize_query(const Attributes& attributes) {
  return attributes.get<int32_t>("quantize_query") != 0;
}

QkvTo8BitRing qkv_to_8bit_ring(const Views& in, const Attributes& attributes) {
  return {qkv_to_ring(in, attributes),
          in[kKeyScale],
          in[kValueScale],
          in.size() > kKeyMean ? &in[kKeyMean] : nullptr,
          attributes.get<int32_t>("value_transposed") != 0,
          quantize_query(attributes)};
}

// Query scales are an output only if queries are quantized.
std::vector<Output> outputs_8bit(const Attributes& attributes) {
  const bool quantized = quantize_query(attributes);
  std::vector<Output> all{{"query", DType::other, quantized ? kKeyCache : kQkv, kQueries}};
  if (quantized) all.push_back({"query_scale", DType::float32, -1, kQueryScales});
  all.push_back(written("key_cache", kKeyCache));
  all.push_back(written("value_cache", kValueCache));
  return all;
}

void check_flags(const Checks& checks, const Attributes& attributes) {
  for (const char* name : {"value_transposed", "quantize_query"}) {
    const int32_t found = attributes.get<int32_t>(name);
    checks.that(found == 0 || found == 1, name, "0 or 1", std::to_string(found));
  }
}

}  // namespace

Operator qk_norm_rope_ring_write_operator() {
  return {"qk_norm_rope_ring_write",
          inputs({DType::bfloat16, DType::float16, DType::float32}, {"key_cache", {}, kQkv}),
          0,
          {integer("sink"), real("eps")},
          nullptr,
          [](const Attributes&) -> std::vector<Output> {
            return {{"query", DType::other, kQkv, kQueries},
                    written("key_cache", kKeyCache),
                    written("value_cache", kValueCache)};
          },
          [](const Views& in, const Attributes& attributes) {
            check_qk_norm_rope_ring_write(qkv_to_ring(in, attributes));
          },
          [](const Views& in, const Attributes& attributes, void* const* out, void*,
             cudaStream_t stream) {
            qk_norm_rope_ring_write(qkv_to_ring(in, attributes), out[0], stream);
          }};
}

Operator qk_norm_rope_ring_write_static_operator() {
  return {"qk_norm_rope_ring_write_static",
          inputs_8bit(),
          1,
          {integer("sink"), real("eps"), flag("value_transposed"), flag("quantize_query")},
          check_flags,
          outputs_8bit,
          [](const Views& in, const Attributes& attributes) {
            check_qk_norm_rope_ring_write_8bit(qkv_to_8bit_ring(in, attributes));
          },
          [](const Views& in, const Attributes& attributes, void* const* out, void*,
             cudaStream_t stream) {
            qk_norm_rope_ring_write_8bit(qkv_to_8bit_ring(in, attributes), out[0],
                                         quantize_query(attributes) ? out[1] : nullptr, stream);
          }};
}

}  // namespace vidc
