// Normalizes and rotates queries and keys, and writes keys and values to their slots of the ring.
#pragma once

#include "sm75_qk_norm_rope.cuh"

namespace vidc {

struct QkNormRopeRingWrite {
  QkNormRope qk;
  void* query;        // [batch, tokens, width]
  void* key_cache;    // [batch, slots, width]
  void* value_cache;  // [batch, slots, width]
};

template <typename T>
__global__ void __launch_bounds__(kMostThreads)
    qk_norm_rope_ring_write_kernel(const QkNormRopeRingWrite given) {
  const int channel = threadIdx.x * kVector, width = given.qk.width;
  const bool holds = channel < width;
  const int token = blockIdx.x, batch = blockIdx.y;
  const int64_t row = static_cast<int64_t>(batch) * given.qk.tokens + token;
  __shared__ int slot;
  if (threadIdx.x == 0) slot = ring_slot(given.qk.ring, token);  // Visible after the sum's barrier.
  float query[kVector], key[kVector];
  Raw<T> value{};
  if (holds)
    value = load_once(static_cast<const T*>(given.qk.qkv) + (row * 3 + 2) * width + channel);
  normalized_and_rotated<T>(given.qk, token, row, channel, holds, query, key);
  if (!holds) return;
  store(static_cast<T*>(given.query) + row * width + channel, query);
  if (slot < 0) return;
  const int64_t to = (static_cast<int64_t>(batch) * given.qk.ring.slots + slot) * width + channel;
  store(static_cast<T*>(given.key_cache) + to, key);
  store_raw(static_cast<T*>(given.value_cache) + to, value);
}

}  // namespace vidc
