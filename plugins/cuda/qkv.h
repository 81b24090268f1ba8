// Checks and kernel arguments that qk_norm_rope_ring_write shares with its 8-bit variant.
#pragma once

#include <cuda_runtime.h>

#include "operators.h"
#include "sm75_qk_norm_rope.cuh"

namespace vidc {

inline void check_qkv(const Checks& checks, const QkvToRing& given, int64_t slots, int64_t heads,
                      int64_t head_dim) {
  const TensorView& qkv = given.qkv;
  const int64_t width = heads * head_dim;
  checks.that(head_dim == 32 || head_dim == 64 || head_dim == 128, given.key_cache.name,
              "a head size of 32, 64 or 128", std::to_string(head_dim));
  checks.width(given.key_cache, width);
  checks.shape(qkv, {given.key_cache.size(0), "T", 3 * width});
  const int64_t tokens = qkv.size(1);
  for (const TensorView* weight : {&given.query_weight, &given.key_weight}) {
    checks.shape(*weight, {width});
    checks.dtype(*weight, {qkv.dtype});
  }
  for (const TensorView* angle : {&given.cos, &given.sin}) {
    checks.shape(*angle, {tokens, head_dim / 2});
    checks.dtype(*angle, {DType::float32});
  }
  checks.shape(given.position, {1});
  checks.dtype(given.position, {DType::int64});
  checks.that(tokens <= slots, qkv.name, "at most " + std::to_string(slots) + " tokens",
              std::to_string(tokens));
  checks.that(0 <= given.sink && given.sink < slots, "sink",
              "from 0 to " + std::to_string(slots - 1), std::to_string(given.sink));
}

inline void check_qkv_memory(const Checks& checks, const QkvToRing& given) {
  for (const TensorView* tensor : {&given.qkv, &given.query_weight, &given.key_weight, &given.cos,
                                   &given.sin, &given.key_cache, &given.value_cache})
    checks.contiguous(*tensor);
}

inline void check_qkv_device(const Checks& checks, const QkvToRing& given) {
  checks.device({&given.qkv, &given.query_weight, &given.key_weight, &given.cos, &given.sin,
                 &given.position, &given.key_cache, &given.value_cache});
}

inline QkNormRope qk_norm_rope(const QkvToRing& given) {
  QkNormRope qk{};
  qk.qkv = given.qkv.data;
  qk.query_weight = given.query_weight.data;
  qk.key_weight = given.key_weight.data;
  qk.cosine = static_cast<const float*>(given.cos.data);
  qk.sine = static_cast<const float*>(given.sin.data);
  qk.ring.position = static_cast<const int64_t*>(given.position.data);
  qk.ring.slots = static_cast<int>(given.key_cache.size(1));
  qk.ring.sink = static_cast<int>(given.sink);
  qk.tokens = static_cast<int>(given.qkv.size(1));
  qk.width = static_cast<int>(given.query_weight.size(0));
  qk.head_dim = static_cast<int>(given.cos.size(1) * 2);
  qk.eps = given.eps;
  return qk;
}

inline dim3 token_grid(const QkvToRing& given) {
  return dim3(static_cast<unsigned>(given.qkv.size(1)), static_cast<unsigned>(given.qkv.size(0)));
}

}  // namespace vidc
