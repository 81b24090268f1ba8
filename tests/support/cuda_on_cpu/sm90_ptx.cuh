// plugins/cuda/sm90_ptx.cuh on a CPU.
//
// Copies are done as early as they may be, where they are issued, or else as late: one at a time when
// all threads wait.

#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "e4m3.h"

namespace vidc::ring_attention {
alignas(1024) inline uint8_t memory[227 << 10];
}

namespace vidc::ptx {

using ring_attention::memory;

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(pointer) - memory);
}

// The copy engine and the products see addresses with bits 4 to 6 mixed with those from 7 on.
inline uint32_t swizzled(uint32_t address, int64_t row_bytes) {
  return address ^ ((address >> 7 & (row_bytes == 128 ? 7 : 3)) << 4);
}

struct PhaseBarrier {
  uint32_t arrivals, pending;
  int64_t bytes = 0;
  uint32_t phase = 0;

  void settle() {
    if (pending == 0 && bytes == 0) {
      pending = arrivals;
      phase ^= 1;
    }
    fibers::changed();
  }
};
inline std::map<uint64_t*, PhaseBarrier> phase_barriers;

inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  phase_barriers[barrier] = {arrivals, arrivals};
}
inline void fence_barrier_init() {}
inline void barrier_arrive(uint64_t* barrier) {
  PhaseBarrier& it = phase_barriers.at(barrier);
  if (it.pending-- == 0) std::abort();
  it.settle();
}
inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
  phase_barriers.at(barrier).bytes += bytes;
  barrier_arrive(barrier);
}
inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  PhaseBarrier& it = phase_barriers.at(barrier);
  fibers::wait([&] { return it.phase != parity; });
}

inline void fence_products_read() {}

inline void prefetch_map(const CUtensorMap*) {}

inline bool late_copies;
inline std::deque<std::function<void()>> copies;

inline bool copy_one() {
  if (copies.empty()) return false;
  copies.front()();
  copies.pop_front();
  return true;
}

inline void copy_now(void* target, const CUtensorMap* map, uint64_t* barrier, int c0, int c1,
                     int c2, int c3) {
  const int64_t from[4] = {c0, c1, c2, c3};
  const int64_t* box = map->box;
  const uint32_t base = shared_address(target);
  uint32_t offset = 0;
  for (int64_t d = 0; d < box[3]; ++d)
    for (int64_t c = 0; c < box[2]; ++c)
      for (int64_t b = 0; b < box[1]; ++b)
        for (int64_t a = 0; a < box[0]; ++a, ++offset) {
          const int64_t at[4] = {from[0] + a, from[1] + b, from[2] + c, from[3] + d};
          bool inside = true;
          for (int i = 0; i < 4; ++i) inside = inside && at[i] < map->sizes[i];
          const int64_t element =
              ((at[3] * map->sizes[2] + at[2]) * map->sizes[1] + at[1]) * map->sizes[0] + at[0];
          memory[swizzled(base + offset, box[0])] = inside ? map->address[element] : 0;
        }
  PhaseBarrier& it = phase_barriers.at(barrier);
  it.bytes -= offset;
  it.settle();
}

inline void copy_tile(void* target, const CUtensorMap* map, uint64_t* barrier, int c0, int c1,
                      int c2, int c3) {
  copies.push_back([=] { copy_now(target, map, barrier, c0, c1, c2, c3); });
  if (late_copies) {
    std::memset(target, 0x55, map->box[0] * map->box[1] * map->box[2] * map->box[3]);
  } else {
    copy_one();
  }
}

template <int>
void give_up_registers() {}
template <int>
void take_registers() {}

inline fibers::Barrier named_barriers[16];
inline bool any_of_barrier[16];

inline void named_barrier_sync(int id, int threads) { named_barriers[id].sync(threads); }
inline void named_barrier_arrive(int id, int threads) { named_barriers[id].arrive(threads); }
inline bool named_barrier_any(int id, int threads, bool value) {
  named_barriers[id].sync(threads);
  any_of_barrier[id] = false;
  named_barriers[id].sync(threads);
  any_of_barrier[id] |= value;
  named_barriers[id].sync(threads);
  return any_of_barrier[id];
}

// Of each thread: the groups of products that it has not waited for, the last one still open.
using Group = std::vector<std::function<void()>>;
inline std::deque<Group> pending[1024];

inline void forget_products() {
  for (auto& groups : pending) groups.assign(1, {});
}
inline void products_fence() {}
inline void products_commit() { pending[threadIdx.x].emplace_back(); }
template <int kPending>
void products_wait() {
  auto& groups = pending[threadIdx.x];
  while (groups.size() > kPending + 1) {
    for (const auto& product : groups.front()) product();
    groups.pop_front();
  }
}
template <typename T, int N>
void pin(T (&)[N]) {}

template <int kRowBytes>
uint64_t operand(uint32_t rows, int along) {
  return uint64_t{kRowBytes} << 32 | (rows + static_cast<uint32_t>(along));
}

inline float exp2_approximate(float x) { return std::exp2(x); }
inline float max_or_nan(float a, float b) { return a > b || std::isnan(a) ? a : b; }
// A comparison with NaN is false: the result is 0.
inline float fma_saturate(float a, float b, float c) {
  const float sum = std::fma(a, b, c);
  return sum > 0 ? std::min(sum, 1.0f) : 0.0f;
}
inline uint16_t two_e4m3(uint32_t halves) {
  const auto half = [&](uint32_t x) {
    return static_cast<float>(bits<_Float16>(static_cast<uint16_t>(x)));
  };
  return e4m3::two_from_floats(half(halves), half(halves >> 16));
}
inline uint16_t two_e4m3(float a, float b) { return e4m3::two_from_floats(a, b); }

}  // namespace vidc::ptx
