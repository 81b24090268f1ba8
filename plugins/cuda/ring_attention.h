/* Softmax attention over a ring of 8-bit keys and values, head sizes 64 and 128.
 *
 * With 8-bit numbers q, k, v and their scales, for each query t and each head:
 *
 *   logit[j]  = query_scale[t] * key_scale * dot(q[t], k[j]) / sqrt(D)        j < valid_length
 *   output[t] = value_scale * (sum of softmax(logit)[j] * v[j]) + value_mean
 *
 * Softmax ignores a vector that all keys of a head share; value_mean is the mean subtracted from
 * values. Slots from valid_length on do not affect the output and may have any content, except that
 * E4M3 values must not be NaN there: zero times NaN is NaN.
 *
 * Layouts, all contiguous and aligned to 16 bytes; "8 bits" is int8, from -127 to 127, or e4m3:
 *
 *   query         8 bits [B, T, H, D]
 *   query_scale   float  [B, H, T]       not negative
 *   key           8 bits [B, S, H, D]
 *   key_scale     float  [H]             not negative
 *   value         8 bits [B, H, D, S']   S' is a multiple of 16, at least S; key 16 g + ORDER[i] is
 *                                        at 16 g + i, ORDER = 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15
 *   value_scale   float  [H, D]
 *   value_mean    float  [H, D]
 *   valid_length  int64  [1]             clamped to [1, S]; read by the kernel
 *   output_scale  float  [1]             divides an e4m3 output; null for others
 *   output               [B, T, H, D]    of output_type
 *
 * With ORDER, a thread's logits are its operand of the product with the values: of 16 keys thread
 * i % 4 has the logits of 2 i, 2 i + 1, 8 + 2 i and 9 + 2 i, and the operand has four in a row.
 */

#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum VidcRingFormat { VIDC_RING_INT8 = 0, VIDC_RING_E4M3 = 1 };
enum VidcOutputType { VIDC_BF16 = 0, VIDC_FP16 = 1, VIDC_E4M3 = 2 };

struct VidcRingAttention {
  const void* query;
  const float* query_scale;
  const void* key;
  const float* key_scale;
  const void* value;
  const float* value_scale;
  const float* value_mean;
  const int64_t* valid_length;
  const float* output_scale;
  void* output;
  /* At least vidc_ring_attention_workspace() bytes, of which the first
   * vidc_ring_attention_zeroed() are zero; launches that may overlap need separate ones. A launch
   * leaves it ready for the next. */
  void* workspace;
  /* For debugging; may be null. [128, 128], int32 or for e4m3 float: the products of the first
   * queries and keys of the first batch row and head. */
  void* products;
  int32_t batch;
  int32_t queries;
  int32_t slots;
  /* S' */
  int32_t value_slots;
  int32_t heads;
  int32_t head_dim;
  int32_t format;
  int32_t output_type;
  /* Thread blocks, at most as many as run at once; 0 for one per multiprocessor. */
  int32_t ctas;
};

/* Returns the bytes of workspace for these sizes on the current device. */
size_t vidc_ring_attention_workspace(const struct VidcRingAttention* arguments);

/* Returns how many of these bytes, from the first on, must be zero. */
size_t vidc_ring_attention_zeroed(const struct VidcRingAttention* arguments);

/* Enqueues the kernel for sm_90; may be captured in a CUDA graph. Returns cudaErrorInvalidValue for
 * unsupported sizes. */
cudaError_t vidc_ring_attention(const struct VidcRingAttention* arguments, cudaStream_t stream);

/* Enqueues the portable kernel for sm_75 and newer; may be captured in a CUDA graph. It needs no
 * workspace and rounds softmax weights to float16. */
cudaError_t vidc_ring_attention_portable(const struct VidcRingAttention* arguments,
                                         cudaStream_t stream);

#ifdef __cplusplus
}
#endif
