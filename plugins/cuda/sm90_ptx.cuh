// PTX of sm_90 that CUDA C++ lacks: mbarriers, copies of tensor tiles, and the order of a
// warpgroup's products.

#pragma once

#include <cuda.h>

#include <cstdint>

namespace vidc::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// --- mbarriers: a phase completes after `arrivals` arrivals and all expected bytes.

__device__ __forceinline__ void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}

// Makes initialized barriers visible to the copy engine.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Waits for the end of the phase of this parity. A new barrier is in phase 0: a wait for parity 1
// returns at once.
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// --- Copies of tiles of a tensor with four dimensions, innermost coordinate first.

__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void copy_tile(void* target, const CUtensorMap* map, uint64_t* barrier,
                                          int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(target)),
      "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}

// Makes a thread's own writes to shared memory visible to products.
__device__ __forceinline__ void fence_products_read() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Warpgroups.

template <int kRegisters>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Arrives at a barrier of `threads` and waits for the others.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Arrives at a barrier of `threads` without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A barrier that returns to all threads whether any passed `value`.
__device__ __forceinline__ bool named_barrier_any(int id, int threads, bool value) {
  int any;
  asm volatile(
      "{\n"
      ".reg .pred in, out;\n"
      "setp.ne.b32 in, %3, 0;\n"
      "barrier.cta.red.or.pred out, %1, %2, in;\n"
      "selp.b32 %0, 1, 0, out;\n"
      "}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<int>(value))
      : "memory");
  return any != 0;
}

// Orders a warpgroup's own accesses to registers before the products that follow.
__device__ __forceinline__ void products_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `kPending` of the committed groups are pending.
template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of registers across this point: products write them
// asynchronously.
template <typename T, int N>
__device__ __forceinline__ void pin(T (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

template <int N>
__device__ __forceinline__ void pin(float (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int N>
__device__ __forceinline__ void pin(uint16_t (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+h"(registers[i])::"memory");
}

// Descriptor of an operand in shared memory with contiguous rows of `kRowBytes` (64 or 128), in the
// copy engine's swizzle of that width. Its first row is aligned to 8 rows. `along` is an offset in
// its rows, in bytes.
template <int kRowBytes>
__device__ __forceinline__ uint64_t operand(uint32_t rows, int along) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  constexpr uint32_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  constexpr uint32_t kEightRows = 8 * kRowBytes / 16;
  constexpr uint32_t kUnused = 1;
  // Shared memory has less than 2^18 bytes, so the address does not overflow into the next field.
  const uint32_t low = (rows / 16 | kUnused << 16) + along / 16;
  return uint64_t{(kSwizzle << 30) | kEightRows} << 32 | low;
}

// --- Numbers.

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// NaN if one of them is NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// a * b + c, clamped to [0, 1]; NaN becomes 0.
__device__ __forceinline__ float fma_saturate(float a, float b, float c) {
  float d;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}

// Rounds two packed float16 numbers to e4m3, saturating at 448.
__device__ __forceinline__ uint16_t two_e4m3(uint32_t halves) {
  uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(two) : "r"(halves));
  return two;
}

// Rounds two floats to e4m3, saturating at 448; `a` is in the lower byte.
__device__ __forceinline__ uint16_t two_e4m3(float a, float b) {
  uint16_t two;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(two) : "f"(a), "f"(b));
  return two;
}

}  // namespace vidc::ptx
