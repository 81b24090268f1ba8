// The operators, framework-free: checked arguments to launched kernels. What each computes is
// documented where its reference is, in the Python module of its name.
//
// Outputs are allocated by the caller after `check_` has passed. Every function throws vidc::Error.
#pragma once

#include <cuda_runtime.h>

#include "arguments.h"

namespace vidc {

// `output_scale` and `output_mean` are null where there is none.
void check_gelu_quantize(const TensorView& x, DType dtype, const TensorView* output_scale,
                         const TensorView* output_mean);
void gelu_quantize(const TensorView& x, DType dtype, const TensorView* output_scale,
                   const TensorView* output_mean, void* output, cudaStream_t stream);

// What every form of qk_norm_rope_ring_write takes.
struct QkvToRing {
  TensorView qkv, query_weight, key_weight, cos, sin, position, key_cache, value_cache;
  int64_t sink;
  float eps;
};

void check_qk_norm_rope_ring_write(const QkvToRing& given);
void qk_norm_rope_ring_write(const QkvToRing& given, void* query, cudaStream_t stream);

// Its form with a ring of 8 bits, whose scales are given for each head.
struct QkvTo8BitRing {
  QkvToRing qkv;
  TensorView key_scale, value_scale;
  const TensorView* key_mean;  // null for zeros
  bool value_transposed;
  bool quantize_query;
};

void check_qk_norm_rope_ring_write_8bit(const QkvTo8BitRing& given);
// `query_scale` is not written where queries are not quantized.
void qk_norm_rope_ring_write_8bit(const QkvTo8BitRing& given, void* query, void* query_scale,
                                  cudaStream_t stream);

struct RingAttention16Bit {
  TensorView query, key_cache, value_cache, valid_length;
};

void check_ring_attention_16bit(const RingAttention16Bit& given);
void ring_attention_16bit(const RingAttention16Bit& given, void* output, cudaStream_t stream);

struct To8BitAttention {
  TensorView query, query_scale, key_cache, value_cache, key_scale, value_scale, value_mean,
      valid_length;
  const TensorView* output_scale;  // null where there is none
};

void check_ring_attention_8bit_dtype(DType dtype);
void check_ring_attention_8bit(const To8BitAttention& given, DType dtype);
// Bytes of memory that a launch needs besides, on whatever GPU; they do for smaller sizes too, and
// what is in them does not matter. Two launches that may overlap need them twice.
int64_t ring_attention_8bit_workspace(const To8BitAttention& given, DType dtype);
void ring_attention_8bit(const To8BitAttention& given, DType dtype, void* workspace, void* output,
                         cudaStream_t stream);

}  // namespace vidc
