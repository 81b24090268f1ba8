// What kernels use of CUDA C++, on a CPU.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "fibers.h"

#define __CUDACC__ 1
#define __device__
#define __host__
#define __global__
#ifndef __shared__  // Where blocks run one after another, what threads share may be static.
#define __shared__
#endif
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

using cudaError_t = int;
using cudaStream_t = void*;

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct char2 {
  signed char x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline char2 make_char2(signed char x, signed char y) { return {x, y}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

using std::max;
using std::min;

template <typename To, typename From>
To bits(From value) {
  To result;
  static_assert(sizeof result == sizeof value);
  std::memcpy(&result, &value, sizeof result);
  return result;
}
inline float __int_as_float(int32_t x) { return bits<float>(x); }
inline int32_t __float_as_int(float x) { return bits<int32_t>(x); }
inline uint32_t __float_as_uint(float x) { return bits<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return bits<float>(x); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __fmul_ru(float a, float b) {
  const double exact = double{a} * double{b};
  const float nearest = static_cast<float>(exact);
  return double{nearest} < exact ? std::nextafter(nearest, INFINITY) : nearest;
}

inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= (both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) {
  for (int i = 0; i < 32; i += 8) c += (a >> i & 0xff) * (b >> i & 0xff);
  return c;
}

inline void __threadfence() {}
template <typename T>
T __ldcg(const T* pointer) {
  return *pointer;
}
template <typename T>
T __ldcs(const T* pointer) {
  return *pointer;
}
template <typename T>
T __ldg(const T* pointer) {
  return *pointer;
}
template <typename T>
void __stcg(T* pointer, T value) {
  *pointer = value;
}
inline unsigned atomicInc(unsigned* counter, unsigned most) {
  const unsigned before = *counter;
  *counter = before >= most ? 0 : before + 1;
  return before;
}
inline unsigned long long atomicAdd(unsigned long long* sum, unsigned long long value) {
  const unsigned long long before = *sum;
  *sum += value;
  return before;
}
[[noreturn]] inline void __trap() { std::abort(); }

inline fibers::Barrier block_barrier;
inline void __syncthreads() { block_barrier.sync(blockDim.x); }

// What the lanes of each warp show each other.
inline fibers::Barrier warp_barriers[32];
inline uint32_t shown[32][32];
template <typename T, typename Read>
auto exchange(T value, Read read) {
  const unsigned warp = threadIdx.x / 32;
  shown[warp][threadIdx.x % 32] = bits<uint32_t>(value);
  warp_barriers[warp].sync(32);
  const auto result = read(shown[warp]);
  warp_barriers[warp].sync(32);
  return result;
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const unsigned other = threadIdx.x % 32 ^ static_cast<unsigned>(mask);
  return exchange(value, [&](const uint32_t* lanes) { return bits<T>(lanes[other]); });
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return exchange(value, [&](const uint32_t* lanes) { return bits<T>(lanes[lane]); });
}
inline bool __any_sync(unsigned, bool value) {
  return exchange(uint32_t{value}, [](const uint32_t* lanes) {
    return std::any_of(lanes, lanes + 32, [](uint32_t lane) { return lane != 0; });
  });
}
