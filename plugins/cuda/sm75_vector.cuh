// Eight elements of a row at a time, as 16-byte accesses, computed with as float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace vidc {

constexpr int kVector = 8;

// Two neighbouring elements and their values in float32.
template <typename T>
struct Packed;

template <>
struct Packed<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static __device__ __forceinline__ float2 unpack(Pair pair) { return __bfloat1622float2(pair); }
  static __device__ __forceinline__ Pair pack(float a, float b) {
    return __floats2bfloat162_rn(a, b);
  }
};

template <>
struct Packed<float> {
  using Pair = float2;
  static __device__ __forceinline__ float2 unpack(Pair pair) { return pair; }
  static __device__ __forceinline__ Pair pack(float a, float b) { return make_float2(a, b); }
};

template <>
struct Packed<__half> {
  using Pair = __half2;
  static __device__ __forceinline__ float2 unpack(Pair pair) { return __half22float2(pair); }
  static __device__ __forceinline__ Pair pack(float a, float b) { return __floats2half2_rn(a, b); }
};

// Eight elements as they lie in memory: half the registers of their float32 values.
template <typename T>
struct Raw {
  uint4 words[sizeof(T) * kVector / sizeof(uint4)];
};

// Loads elements that are read once: they leave the caches to what is read again.
template <typename T>
__device__ __forceinline__ Raw<T> load_once(const T* from) {
  Raw<T> raw;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(raw) / sizeof(uint4)); ++i)
    raw.words[i] = __ldcs(reinterpret_cast<const uint4*>(from) + i);
  return raw;
}

// Loads elements that other blocks read too.
template <typename T>
__device__ __forceinline__ Raw<T> load_shared(const T* from) {
  Raw<T> raw;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(raw) / sizeof(uint4)); ++i)
    raw.words[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
  return raw;
}

template <typename T>
__device__ __forceinline__ void store_raw(T* to, const Raw<T>& raw) {
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(raw) / sizeof(uint4)); ++i)
    reinterpret_cast<uint4*>(to)[i] = raw.words[i];
}

template <typename T>
__device__ __forceinline__ void unpack(const Raw<T>& raw, float (&to)[kVector]) {
  const auto* pairs = reinterpret_cast<const typename Packed<T>::Pair*>(raw.words);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const float2 pair = Packed<T>::unpack(pairs[i]);
    to[2 * i] = pair.x;
    to[2 * i + 1] = pair.y;
  }
}

template <typename T>
__device__ __forceinline__ void store(T* to, const float (&from)[kVector]) {
  Raw<T> raw;
  auto* pairs = reinterpret_cast<typename Packed<T>::Pair*>(raw.words);
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) pairs[i] = Packed<T>::pack(from[2 * i], from[2 * i + 1]);
  store_raw(to, raw);
}

// Rounds to nearest even; what is beyond the largest number becomes it.
template <>
__device__ __forceinline__ void store<__nv_fp8_e4m3>(__nv_fp8_e4m3* to,
                                                     const float (&from)[kVector]) {
  uint2 words;
  auto* pairs = reinterpret_cast<__nv_fp8x2_storage_t*>(&words);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] = __nv_cvt_float2_to_fp8x2(make_float2(from[2 * i], from[2 * i + 1]), __NV_SATFINITE,
                                        __NV_E4M3);
  *reinterpret_cast<uint2*>(to) = words;
}

template <>
__device__ __forceinline__ void store<int8_t>(int8_t* to, const float (&from)[kVector]) {
  uint2 words;
  auto* bytes = reinterpret_cast<int8_t*>(&words);
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    bytes[i] = static_cast<int8_t>(__float2int_rn(fminf(fmaxf(from[i], -127.f), 127.f)));
  *reinterpret_cast<uint2*>(to) = words;
}

// Rounds values as storing them would.
template <typename T>
__device__ __forceinline__ void round_to(float (&values)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; i += 2) {
    const float2 pair = Packed<T>::unpack(Packed<T>::pack(values[i], values[i + 1]));
    values[i] = pair.x;
    values[i + 1] = pair.y;
  }
}

}  // namespace vidc
