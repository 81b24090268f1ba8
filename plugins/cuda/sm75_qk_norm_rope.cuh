// RMS norm of queries and keys over all heads, then rotary embedding; shared by
// qk_norm_rope_ring_write and its 8-bit variant. A block has one token, a thread 8 channels of its
// queries and of its keys.
#pragma once

#include "sm75_ring.cuh"
#include "sm75_sum.cuh"
#include "sm75_vector.cuh"

namespace vidc {

struct QkNormRope {
  const void* qkv;           // [batch, tokens, 3 * width]
  const void* query_weight;  // [width], the dtype of qkv
  const void* key_weight;
  const float* cosine;  // [tokens, head_dim / 2]
  const float* sine;
  Ring ring;
  int tokens;
  int width;
  int head_dim;
  float eps;
};

// Rotates eight channels of a head by the angles of their pairs.
__device__ __forceinline__ void rotate(float (&x)[kVector], const float4& cosine,
                                       const float4& sine) {
  const float cosines[] = {cosine.x, cosine.y, cosine.z, cosine.w};
  const float sines[] = {sine.x, sine.y, sine.z, sine.w};
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float even = x[2 * i], odd = x[2 * i + 1];
    x[2 * i] = even * cosines[i] - odd * sines[i];
    x[2 * i + 1] = even * sines[i] + odd * cosines[i];
  }
}

// Applies the norm's factor and weight; rounds to the model's dtype before the rotation, as the
// model does.
template <typename T>
__device__ __forceinline__ void normalize(float (&x)[kVector], float factor, const Raw<T>& weight) {
  float weights[kVector];
  unpack(weight, weights);
#pragma unroll
  for (int i = 0; i < kVector; ++i) x[i] = x[i] * factor * weights[i];
  round_to<T>(x);
}

// Loads, normalizes and rotates the queries and keys of this thread. Every thread of the block
// calls it; results of threads beyond the row are meaningless.
template <typename T>
__device__ __forceinline__ void normalized_and_rotated(const QkNormRope& given, int token,
                                                       int64_t row, int channel, bool holds,
                                                       float (&query)[kVector],
                                                       float (&key)[kVector]) {
  __shared__ float2 squares[kWarps];
  const T* packed = static_cast<const T*>(given.qkv) + row * 3 * given.width + channel;
  Raw<T> raw_query{}, raw_key{};
  float4 cosine{}, sine{};
  if (holds) {
    raw_query = load_once(packed);
    raw_key = load_once(packed + given.width);
    const int64_t angle =
        (static_cast<int64_t>(token) * given.head_dim + channel % given.head_dim) / 2;
    cosine = __ldg(reinterpret_cast<const float4*>(given.cosine + angle));
    sine = __ldg(reinterpret_cast<const float4*>(given.sine + angle));
  }
  unpack(raw_query, query);
  unpack(raw_key, key);
  float2 sum = make_float2(0.f, 0.f);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    sum.x += query[i] * query[i];
    sum.y += key[i] * key[i];
  }
  sum = block_sum(sum, squares);
  // Every block reads the weights, so they are cached; loading them here saves registers across the
  // sum.
  Raw<T> query_weight{}, key_weight{};
  if (holds) {
    query_weight = load_shared(static_cast<const T*>(given.query_weight) + channel);
    key_weight = load_shared(static_cast<const T*>(given.key_weight) + channel);
  }
  normalize<T>(query, rsqrtf(sum.x / given.width + given.eps), query_weight);
  normalize<T>(key, rsqrtf(sum.y / given.width + given.eps), key_weight);
  rotate(query, cosine, sine);
  rotate(key, cosine, sine);
}

}  // namespace vidc
