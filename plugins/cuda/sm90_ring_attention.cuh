// Attention over an 8-bit ring for sm_90. ring_attention.h documents arguments and result,
// sm90_ring_int8.cuh and sm90_ring_e4m3.cuh the computation.
//
// A CTA has one warpgroup that copies, and others that compute, 64 queries each. For INT8, two
// compute. Each overlaps its own products and exponentials: a block's product of weights and values
// runs beside the exponentials of the next block. For E4M3, three compute. Each does one thing
// after another, and the products of one run beside the exponentials of the others.

#pragma once

#include "sm90_ptx.cuh"
#include "ring_attention.h"
#include "sm90_ring_e4m3.cuh"
#include "sm90_ring_int8.cuh"
#include "sm90_ring_output.cuh"
#include "sm90_ring_tiles.cuh"

namespace vidc::ring_attention {

// Barriers by which two warpgroups take turns to issue products.
struct Turns {
  static constexpr int kBoth = 2 * kGroupThreads;
  int own;
  int other;

  __device__ __forceinline__ explicit Turns(int group)
      : own(kFirstTurnBarrier + group), other(kFirstTurnBarrier + 1 - group) {}
  __device__ __forceinline__ void take() const { ptx::named_barrier_sync(own, kBoth); }
  __device__ __forceinline__ void give() const { ptx::named_barrier_arrive(other, kBoth); }
};

// step() calls these functions of a tile, Int8Tile or E4m3Tile, for each block of keys:
//
//   clear_sums     clears the sums of the logits
//   issue_logits   starts the products of queries and keys
//   mask           masks logits of keys from `valid` on, counted from the block's first
//   exponentiate   turns logits into rounded weights
//   take_weights   turns the rounded weights into operands
//   add            INT8: adds the products of the block before to the output
//   issue_values   starts the products of weights and values; E4M3 first completes and adds those of
//                  the first 64 of 128 channels
//   values_done    after the wait for these products; E4M3 adds them to the output
//
// and, after a tile's last block, add_last and sum_rows, which completes the sums of the weights.

// Makes the logits of a block of keys, the `count`-th of this CTA.
template <typename Tile>
__device__ __forceinline__ void multiply_keys(const Self& me, Tile& s, uint32_t query,
                                              unsigned count, Shared<Tile>& shared) {
  const Stage<kStages> k(count);
  s.clear_sums();
  ptx::barrier_wait(&shared.key_full[k.stage], k.parity);
  s.issue_logits(query, ptx::shared_address(shared.key[k.stage]));
  ptx::products_wait<0>();
  ptx::pin(s.sums);
  me.release(&shared.key_empty[k.stage]);
}

// Multiplies the rounded weights of the `count`-th block and its values.
template <typename Tile>
__device__ __forceinline__ void multiply_values(const Self& me, Tile& s, unsigned count,
                                                Shared<Tile>& shared) {
  const Stage<kStages> v(count);
  s.take_weights();
  s.add();
  ptx::barrier_wait(&shared.value_full[v.stage], v.parity);
  s.issue_values(ptx::shared_address(shared.value[v.stage]));
  ptx::products_wait<0>();
  s.values_done();
  me.release(&shared.value_empty[v.stage]);
}

// Multiplies the `count`-th block's weights and values beside the next block's logits and
// exponentials.
template <typename Tile>
__device__ __forceinline__ void overlapped_step(const Self& me, const Turns& turns, Tile& s,
                                                uint32_t query, unsigned count, int valid,
                                                Shared<Tile>& shared) {
  const Stage<kStages> now(count), next(count + 1);
  s.take_weights();
  s.clear_sums();
  ptx::barrier_wait(&shared.key_full[next.stage], next.parity);
  turns.take();
  s.issue_logits(query, ptx::shared_address(shared.key[next.stage]));
  // A wait here, not later, keeps the assembler from adding before the products are issued.
  ptx::barrier_wait(&shared.value_full[now.stage], now.parity);
  s.add();
  s.issue_values(ptx::shared_address(shared.value[now.stage]));
  turns.give();
  ptx::products_wait<1>();
  ptx::pin(s.sums);
  me.release(&shared.key_empty[next.stage]);
  s.mask(valid);
  s.exponentiate();
  // A wait for the next operand keeps the assembler from moving the work above behind the products.
  ptx::barrier_wait(&shared.value_full[next.stage], next.parity);
  ptx::products_wait<0>();
  s.values_done();
  me.release(&shared.value_empty[now.stage]);
}

// Steps from one block of keys, the `count`-th of this CTA, to the next. Before a step and after
// it, the newest block's weights are rounded but not yet multiplied with its values, those of the
// blocks before are multiplied, and no product is pending.
template <typename Tile>
__device__ __forceinline__ void step(const Self& me, const Turns& turns, Tile& s, uint32_t query,
                                     unsigned count, int valid, Shared<Tile>& shared) {
  if constexpr (Tile::kOverlaps) {
    overlapped_step(me, turns, s, query, count, valid, shared);
  } else {
    multiply_values(me, s, count, shared);
    multiply_keys(me, s, query, count + 1, shared);
    s.mask(valid);
    s.exponentiate();
  }
}

template <typename Tile, bool kDump>
__device__ __forceinline__ void compute(const Parameters& p, Shared<Tile>& shared) {
  constexpr int kHead = Tile::kHead;
  const Self me;
  const Turns turns(me.group);
  Segment segment;
  Tile s;
  unsigned count = 0;
  if (Tile::kOverlaps && me.group == 1) turns.give();

#pragma unroll 1
  for (int index = 0; shared.work.segment(blockIdx.x, index, segment); ++index) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      s.row[r].scale = logit_scale(p, me, place<Tile>(p, segment.tile), r);
    }
    s.begin();
    const Stage<kQueryStages> q(index);
    ptx::barrier_wait(&shared.query_full[q.stage], q.parity);
    const uint32_t query = ptx::shared_address(&shared.query[q.stage][me.group * kRows * kHead]);
    multiply_keys(me, s, query, count, shared);
    if (kDump && segment.tile == 0 && segment.begin == 0) dump(p, me, s);
    const int valid_after = shared.valid - segment.end * kKeys;
    s.mask(shared.valid - segment.begin * kKeys);
    s.exponentiate();
#pragma unroll 1
    for (int valid = shared.valid - (segment.begin + 1) * kKeys; valid > valid_after; valid -= kKeys) {
      step(me, turns, s, query, count++, valid, shared);
    }
    me.release(&shared.query_empty[q.stage]);

    multiply_values(me, s, count++, shared);
    s.add_last();
    s.sum_rows();
    // Computed again to save registers.
    shared.work.segment(blockIdx.x, index, segment);
    const Place at = place<Tile>(p, segment.tile);
    if (segment.slot < 0 || unite(p, shared.work, me, segment, s)) finish(p, me, at, s);
  }
}

template <typename Tile, bool kDump>
__global__ void __launch_bounds__(kThreads<Tile>, 1)
    kernel(const __grid_constant__ Parameters p, const __grid_constant__ CUtensorMap queries,
           const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared<Tile>& shared = *reinterpret_cast<Shared<Tile>*>(memory);
  // Swizzled tiles rely on this alignment, and a violation shows nowhere else.
  if (ptx::shared_address(memory) % alignof(Shared<Tile>) != 0) __trap();
  if (threadIdx.x == 0) {
    ptx::prefetch_map(&queries);
    ptx::prefetch_map(&keys);
    ptx::prefetch_map(&values);
    constexpr int kComputeWarps = Tile::kGroups * kGroupThreads / 32;
    for (int i = 0; i < kQueryStages; ++i) {
      ptx::barrier_init(&shared.query_full[i], 1);
      ptx::barrier_init(&shared.query_empty[i], kComputeWarps);
    }
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&shared.key_full[i], 1);
      ptx::barrier_init(&shared.key_empty[i], kComputeWarps);
      ptx::barrier_init(&shared.value_full[i], 1);
      ptx::barrier_init(&shared.value_empty[i], kComputeWarps);
    }
    ptx::fence_barrier_init();
    // Clamped: without a block the barriers never complete.
    shared.valid = static_cast<int>(min(max(*p.valid_length, int64_t{1}), int64_t{p.slots}));
    shared.work = StreamK(p.tiles, (shared.valid + kKeys - 1) / kKeys, gridDim.x);
  }
  Tile::write_ones(shared);
  __syncthreads();

  if (threadIdx.x < kGroupThreads) {
    ptx::give_up_registers<kCopyRegisters>();
    if (threadIdx.x == 0) copy(p, queries, keys, values, shared);
  } else {
    ptx::take_registers<Tile::kRegisters>();
    compute<Tile, kDump>(p, shared);
  }
}

}  // namespace vidc::ring_attention
