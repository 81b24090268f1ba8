/* Softmax attention over a ring of 16-bit keys and values, head sizes 64 and 128.
 *
 *   output[t] = sum over j < valid_length of softmax(dot(query[t], key[j]) / sqrt(D)) * value[j]
 *
 * for each head. Slots from valid_length on do not reach the output and may hold anything. Sums are of
 * float32, weights are rounded to the type of the values.
 *
 * Layouts, all contiguous and aligned to 16 bytes, of one type:
 *
 *   query, output         [B, T, H, D]
 *   key, value            [B, S, H, D]
 *   valid_length  int64   [1]           below 1 it counts as 1, above S as S; read when the kernel runs
 */

#pragma once

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum VidcFloat16Bit { VIDC_FLOAT_BF16 = 0, VIDC_FLOAT_FP16 = 1 };

struct VidcRingAttention16Bit {
  const void* query;
  const void* key;
  const void* value;
  const int64_t* valid_length;
  void* output;
  int32_t batch;
  int32_t queries;
  int32_t slots;
  int32_t heads;
  int32_t head_dim;
  int32_t type;
};

/* Enqueues the kernel, which is for any GPU from sm_75 on; may be captured in a graph. cudaErrorInvalidValue
 * for sizes it does not take. */
cudaError_t vidc_ring_attention_16bit(const struct VidcRingAttention16Bit* arguments,
                                      cudaStream_t stream);

#ifdef __cplusplus
}
#endif
