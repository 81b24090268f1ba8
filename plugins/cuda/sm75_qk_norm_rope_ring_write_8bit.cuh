// Normalizes and rotates queries and keys, and writes keys and values to their slots of an 8-bit
// ring, in one launch: a block has a token, or a tile of values that it transposes.
#pragma once

#include "sm75_qk_norm_rope.cuh"
#include "sm75_scale.cuh"
#include "sm75_value_transpose.cuh"

namespace vidc {

struct QkNormRopeRingWrite8Bit {
  QkNormRope qk;
  void* query;               // [batch, tokens, width], the dtype of qkv or of the ring
  float* query_scale;        // [batch, heads, tokens], null unless queries are quantized
  void* key_cache;           // [batch, slots, width]
  void* value_cache;         // [batch, slots, width], null if values are transposed
  const float* key_scale;    // [heads]
  const float* value_scale;  // [heads]
  const float* key_mean;     // [width], null for zeros
  ValueTranspose values;     // zeros if values are not transposed
};

template <typename T, typename Output>
__device__ __forceinline__ void write_token(const QkNormRopeRingWrite8Bit& given, int token,
                                            int batch) {
  const int channel = threadIdx.x * kVector, width = given.qk.width;
  const bool holds = channel < width;
  const int64_t row = static_cast<int64_t>(batch) * given.qk.tokens + token;
  __shared__ int slot;
  if (threadIdx.x == 0) slot = ring_slot(given.qk.ring, token);  // Visible after the sum's barrier.
  float query[kVector], key[kVector];
  Raw<T> raw_value{};
  if (holds && given.value_cache)
    raw_value = load_once(static_cast<const T*>(given.qk.qkv) + (row * 3 + 2) * width + channel);
  normalized_and_rotated<T>(given.qk, token, row, channel, holds, query, key);

  const int heads = width / given.qk.head_dim, head = channel / given.qk.head_dim;
  const int lanes = given.qk.head_dim / kVector;
  if (given.query_scale) {
    const float scale = scale_of_head<Output>(query, lanes);
    if (holds)
      store_scaled(static_cast<Output*>(given.query) + row * width + channel, query, scale);
    if (holds && channel % given.qk.head_dim == 0)
      given.query_scale[(batch * heads + head) * static_cast<int64_t>(given.qk.tokens) + token] =
          scale;
  } else if (holds) {
    store(static_cast<T*>(given.query) + row * width + channel, query);
  }

  if (slot < 0 || !holds) return;
  const int64_t to = (static_cast<int64_t>(batch) * given.qk.ring.slots + slot) * width + channel;
  if (given.key_mean) {
    float mean[kVector];
    unpack(load_shared(given.key_mean + channel), mean);
#pragma unroll
    for (int i = 0; i < kVector; ++i) key[i] -= mean[i];
  }
  store_scaled(static_cast<Output*>(given.key_cache) + to, key, given.key_scale[head]);

  if (!given.value_cache) return;
  float value[kVector];
  unpack(raw_value, value);
  store_scaled(static_cast<Output*>(given.value_cache) + to, value, given.value_scale[head]);
}

// HeadDim is 0 if values are not transposed. Tiles come first: they take longer than tokens, and
// the blocks that start last should be short.
template <typename T, typename Output, int HeadDim>
__global__ void __launch_bounds__(kMostThreads)
    qk_norm_rope_ring_write_8bit_kernel(const QkNormRopeRingWrite8Bit given) {
  int block = blockIdx.x;
  if constexpr (HeadDim > 0) {
    const ValueTranspose& values = given.values;
    const int tiles = values.tiles * values.heads;
    if (block < tiles) {
      transpose_values<T, Output, HeadDim>(values, block % values.tiles, block / values.tiles,
                                           blockIdx.y);
      return;
    }
    block -= tiles;
  }
  write_token<T, Output>(given, block, blockIdx.y);
}

}  // namespace vidc
