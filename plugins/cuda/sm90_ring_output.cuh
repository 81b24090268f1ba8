// Epilogue of a tile in ring attention: merges its parts and writes it.

#pragma once

#include "ring_store.cuh"
#include "sm90_ring_tiles.cuh"

namespace vidc::ring_attention {

// Returns this thread's place in a part of a tile, for one warpgroup: `Tile::kHead / 8` times four
// floats of each thread's output, then the references and sums of its rows.
template <typename Tile>
__device__ __forceinline__ float4* part(const Parameters& p, const Self& me, int slot) {
  constexpr int kVectors = (Tile::kHead / 8 + 1) * kGroupThreads;
  return reinterpret_cast<float4*>(p.parts) +
         static_cast<int64_t>(slot * Tile::kGroups + me.group) * kVectors + me.thread;
}

// Writes this part of a tile. The last CTA to arrive merges the parts in the order of their keys,
// so the result is deterministic. Returns false for the others.
template <typename Tile>
__device__ __forceinline__ bool unite(const Parameters& p, const StreamK& work, const Self& me,
                                      const Segment& segment, Tile& s) {
  constexpr int kHead = Tile::kHead;
  constexpr int kVectors = kHead / 8;
  float4* own = part<Tile>(p, me, segment.slot);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    __stcg(own + i * kGroupThreads, make_float4(s.output[4 * i], s.output[4 * i + 1],
                                                s.output[4 * i + 2], s.output[4 * i + 3]));
  }
  __stcg(own + kVectors * kGroupThreads,
         make_float4(s.row[0].reference, s.row[0].sum, s.row[1].reference, s.row[1].sum));
  __threadfence();
  const int barrier = kFirstGroupBarrier + me.group;
  ptx::named_barrier_sync(barrier, kGroupThreads);
  bool last = false;
  if (me.thread == 0) {
    const unsigned int others = segment.last - segment.first;
    // Wraps to zero with the last arrival, ready for the next launch.
    last = atomicInc(&p.arrivals[segment.tile * Tile::kGroups + me.group], others) == others;
  }
  if (!ptx::named_barrier_any(barrier, kGroupThreads, last)) return false;
  __threadfence();
  float reference[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int cta = segment.first; cta <= segment.last; ++cta) {
    const float4* other = part<Tile>(p, me, work.slot(cta, segment.tile));
    const float4 rows = __ldcg(other + kVectors * kGroupThreads);
    reference[0] = fmaxf(reference[0], rows.x);
    reference[1] = fmaxf(reference[1], rows.z);
  }
  s.begin();
#pragma unroll 1
  for (int cta = segment.first; cta <= segment.last; ++cta) {
    const float4* other = part<Tile>(p, me, work.slot(cta, segment.tile));
    const float4 rows = __ldcg(other + kVectors * kGroupThreads);
    const float factor[2] = {ptx::exp2_approximate(rows.x - reference[0]),
                             ptx::exp2_approximate(rows.z - reference[1])};
    s.row[0].sum = __fmaf_rn(rows.y, factor[0], s.row[0].sum);
    s.row[1].sum = __fmaf_rn(rows.w, factor[1], s.row[1].sum);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const float4 output = __ldcg(other + i * kGroupThreads);
      s.output[4 * i] = __fmaf_rn(output.x, factor[0], s.output[4 * i]);
      s.output[4 * i + 1] = __fmaf_rn(output.y, factor[0], s.output[4 * i + 1]);
      s.output[4 * i + 2] = __fmaf_rn(output.z, factor[1], s.output[4 * i + 2]);
      s.output[4 * i + 3] = __fmaf_rn(output.w, factor[1], s.output[4 * i + 3]);
    }
  }
  return true;
}

template <typename Tile>
__device__ __forceinline__ void finish(const Parameters& p, const Self& me, const Place& at,
                                       const Tile& s) {
  constexpr int kHead = Tile::kHead;
  const float* scale = p.value_scale + at.head * kHead;
  const float* mean = p.value_mean + at.head * kHead;
  const float factor = p.output_scale == nullptr ? 1.0f : 1.0f / *p.output_scale;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = at.query + me.row(r);
    if (query >= p.queries) continue;
    const float share = 1.0f / s.row[r].sum;
    const int64_t start =
        ((static_cast<int64_t>(at.batch) * p.queries + query) * p.heads + at.head) * kHead;
#pragma unroll
    for (int i = 0; i < kHead / 8; ++i) {
      const int channel = 8 * i + 2 * (me.lane % 4);
      const float2 by = *reinterpret_cast<const float2*>(scale + channel);
      const float2 plus = *reinterpret_cast<const float2*>(mean + channel);
      store(p.output, p.output_type, start + channel, factor,
            __fmaf_rn(s.output[4 * i + 2 * r] * share, by.x, plus.x),
            __fmaf_rn(s.output[4 * i + 2 * r + 1] * share, by.y, plus.y));
    }
  }
}

constexpr int kDumpedQueries = 128;

template <typename Tile>
__device__ __forceinline__ void dump(const Parameters& p, const Self& me, const Tile& s) {
  if (me.group * kRows >= kDumpedQueries) return;
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    const int column = i / 4 * 8 + 2 * (me.lane % 4) + i % 2;
    const int place = me.row(i / 2 % 2) * kKeys + column;
    reinterpret_cast<typename Tile::Product*>(p.products)[place] = s.product(i);
  }
}

}  // namespace vidc::ring_attention
