// Vectors of a row's elements per thread, computed in float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace vidc {

constexpr int kVector = 8;  // 16 bytes of 16-bit floats

// Conversion of two neighboring elements to and from float32.
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

// FP8 rounds to nearest even and saturates.
template <>
struct Packed<__nv_fp8_e4m3> {
  using Pair = __nv_fp8x2_storage_t;
  static __device__ __forceinline__ Pair pack(float a, float b) {
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
  }
};

template <>
struct Packed<int8_t> {
  using Pair = char2;
  static __device__ __forceinline__ signed char round(float x) {
    return static_cast<signed char>(__float2int_rn(fminf(fmaxf(x, -127.f), 127.f)));
  }
  static __device__ __forceinline__ Pair pack(float a, float b) {
    return make_char2(round(a), round(b));
  }
};

template <int Bytes>
struct WordOf {
  using Type = uint4;
};
template <>
struct WordOf<8> {
  using Type = uint2;
};

// Elements in their memory format: 16-bit floats take half the registers of float32.
template <typename T>
struct Raw {
  using Word = typename WordOf<sizeof(T) * kVector>::Type;
  static constexpr int kWords = sizeof(T) * kVector / sizeof(Word);
  Word words[kWords];
};

// Loads elements that are read once, bypassing the caches.
template <typename T>
__device__ __forceinline__ Raw<T> load_once(const T* from) {
  Raw<T> raw;
#pragma unroll
  for (int i = 0; i < raw.kWords; ++i)
    raw.words[i] = __ldcs(reinterpret_cast<const typename Raw<T>::Word*>(from) + i);
  return raw;
}

// Loads elements that other blocks also read.
template <typename T>
__device__ __forceinline__ Raw<T> load_shared(const T* from) {
  Raw<T> raw;
#pragma unroll
  for (int i = 0; i < raw.kWords; ++i)
    raw.words[i] = __ldg(reinterpret_cast<const typename Raw<T>::Word*>(from) + i);
  return raw;
}

template <typename T>
__device__ __forceinline__ void store_raw(T* to, const Raw<T>& raw) {
#pragma unroll
  for (int i = 0; i < raw.kWords; ++i)
    reinterpret_cast<typename Raw<T>::Word*>(to)[i] = raw.words[i];
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

// Rounds values as a store would.
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
