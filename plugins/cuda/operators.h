// Framework-free operators: a check of the arguments and a launch for each. The references in
// vidc.plugins.ops document what they compute.
//
// The caller allocates outputs after `check_` has passed. Every function throws vidc::Error.
#pragma once

#include <cuda_runtime.h>

#include "arguments.h"

namespace vidc {

// `output_scale` and `output_mean` may be null.
void check_gelu_quantize(const TensorView& x, DType dtype, const TensorView* output_scale,
                         const TensorView* output_mean);
void gelu_quantize(const TensorView& x, DType dtype, const TensorView* output_scale,
                   const TensorView* output_mean, void* output, cudaStream_t stream);

// Arguments of qk_norm_rope_ring_write, and those that its 8-bit variant shares.
struct QkvToRing {
  TensorView qkv, query_weight, key_weight, cos, sin, position, key_cache, value_cache;
  int64_t sink;
  float eps;
};

void check_qk_norm_rope_ring_write(const QkvToRing& given);
void qk_norm_rope_ring_write(const QkvToRing& given, void* query, cudaStream_t stream);

// Arguments of the variant for an 8-bit ring with static scales per head.
struct QkvTo8BitRing {
  QkvToRing qkv;
  TensorView key_scale, value_scale;
  const TensorView* key_mean;  // null for zeros
  bool value_transposed;
  bool quantize_query;
};

void check_qk_norm_rope_ring_write_8bit(const QkvTo8BitRing& given);
// `query_scale` is not written unless queries are quantized.
void qk_norm_rope_ring_write_8bit(const QkvTo8BitRing& given, void* query, void* query_scale,
                                  cudaStream_t stream);

// Products m0 to m5, or frames in m[0]. All pointers but m[0] may be null.
struct WinogradFrames {
  const TensorView* m[6];
  const TensorView *bias, *residual;
  TensorView gamma, past;
  int64_t tile;  // frames
  bool keep_sum;
};

// Returns the number of tiles of a video.
int64_t check_norm_silu_winograd(const WinogradFrames& given);
// `sum` is written only if `keep_sum` is true.
void norm_silu_winograd(const WinogradFrames& given, void* inputs, void* last, void* sum,
                        cudaStream_t stream);

// `shift` may be null.
struct GroupNormSiluArguments {
  TensorView x;
  const TensorView* shift;
  TensorView weight, bias;
  int64_t groups;
  float eps;
  bool silu;
};

void check_group_norm_silu(const GroupNormSiluArguments& given);
// Returns the bytes of workspace. Its initial content does not matter.
int64_t group_norm_silu_workspace(const GroupNormSiluArguments& given);
void group_norm_silu(const GroupNormSiluArguments& given, void* workspace, void* output,
                     cudaStream_t stream);

// `noise` may be null.
struct SamplerStepArguments {
  TensorView velocity;
  const TensorView* noise;
  TensorView guidance, table, progress, latent, sample, timestep;
};

void check_sampler_step(const SamplerStepArguments& given);
void sampler_step(const SamplerStepArguments& given, cudaStream_t stream);

struct TemporalAttentionArguments {
  TensorView query, key, value;
};

void check_temporal_attention(const TemporalAttentionArguments& given);
void temporal_attention(const TemporalAttentionArguments& given, void* output,
                        cudaStream_t stream);

struct RingAttention16Bit {
  TensorView query, key_cache, value_cache, valid_length;
};

void check_ring_attention_16bit(const RingAttention16Bit& given);
void ring_attention_16bit(const RingAttention16Bit& given, void* output, cudaStream_t stream);

struct RingAttention8Bit {
  TensorView query, query_scale, key_cache, value_cache, key_scale, value_scale, value_mean,
      valid_length;
  const TensorView* output_scale;  // null unless the output is FP8
};

void check_ring_attention_8bit_dtype(DType dtype);
void check_ring_attention_8bit(const RingAttention8Bit& given, DType dtype);
// Returns the bytes of workspace that suffice on any GPU and for smaller sizes. Its initial content
// does not matter. Launches that may overlap need separate workspaces.
int64_t ring_attention_8bit_workspace(const RingAttention8Bit& given, DType dtype);
void ring_attention_8bit(const RingAttention8Bit& given, DType dtype, void* workspace, void* output,
                         cudaStream_t stream);

}  // namespace vidc
