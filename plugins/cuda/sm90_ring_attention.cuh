// Attention over a ring of INT8 keys and values, for sm_90. See sm90_ring_attention.h for what it
// takes and gives.
//
// A CTA has two warpgroups that compute, 64 queries each, and one that copies. For each block of 128
// keys a warpgroup
//
//   1. multiplies queries and keys: exact sums in int32, which start at 0x4b400000. These are the bits
//      of the float 1.5 * 2^23, whose unit is 1, so that the sums' bits are floats already, only
//      larger by 1.5 * 2^23 ("biased"). |sum| <= 127 * 127 * 128 < 2^22, so it fits.
//   2. takes each row's maximum over this block alone and rounds 255 * exp2(logit - maximum) to uint8.
//   3. multiplies that with the values: exact sums in int32 that start from zero for each block.
//   4. adds them to the output in float32, times exp2(the block's maximum - a reference). The
//      reference is the row's first maximum; it moves only when a later one exceeds it by 2^64, so
//      that the output is hardly ever rescaled.
//
// The sum of a row's weights is that of the rounded ones, so that the weights sum to one exactly.
//
// Products run while other work does: step 3 of a block beside step 2 of the next, step 1 of the next
// beside step 4 of the one before.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "sm90_ptx.cuh"
#include "sm90_ring_attention.h"
#include "sm90_wgmma_int8.cuh"
#include "stream_k.cuh"

namespace vidc::ring_attention {

constexpr int kQueries = 128;
constexpr int kKeys = 128;
constexpr int kGroups = 2;
constexpr int kGroupThreads = 128;
constexpr int kThreads = (1 + kGroups) * kGroupThreads;
constexpr int kRows = kQueries / kGroups;
constexpr int kStages = 4;
constexpr int kQueryStages = 2;
constexpr int kDepth = 32;
constexpr int kCopyRegisters = 24;
constexpr int kComputeRegisters = 240;

constexpr int kFirstTurnBarrier = 1;  // 0 is the whole CTA's.
constexpr int kFirstGroupBarrier = kFirstTurnBarrier + kGroups;

constexpr int32_t kBias = 0x4b400000;
// Minus infinity: less than any sum as an integer too, and its weight is zero whatever the scale.
constexpr int32_t kMasked = static_cast<int32_t>(0xff800000);
// A scale of zero would make that NaN.
constexpr float kLeastScale = 1e-30f;
constexpr float kLargestWeight = 255.0f;
constexpr float kReferenceSlack = 64.0f;

struct Parameters {
  const float* query_scale;
  const float* key_scale;
  const float* value_scale;
  const float* value_mean;
  const int64_t* valid_length;
  void* output;
  float* parts;
  unsigned int* arrivals;
  int32_t* products;
  int queries;
  int slots;
  int heads;
  int tiles;
  int query_tiles;
  int output_type;
  float output_factor;
  float logit_scale;
};

template <int kHead>
struct alignas(1024) Shared {
  int8_t query[kQueryStages][kQueries * kHead];
  int8_t key[kStages][kKeys * kHead];
  int8_t value[kStages][kHead * kKeys];
  uint64_t query_full[kQueryStages];
  uint64_t query_empty[kQueryStages];
  uint64_t key_full[kStages];
  uint64_t key_empty[kStages];
  uint64_t value_full[kStages];
  uint64_t value_empty[kStages];
  // Here rather than in registers, of which the loop over keys leaves none.
  StreamK work;
  int valid;
};

// The place in a ring of stages of the `count`-th thing that goes through it.
template <int kCount>
struct Stage {
  static_assert((kCount & (kCount - 1)) == 0);
  unsigned stage;
  uint32_t parity;

  __device__ __forceinline__ explicit Stage(unsigned count)
      : stage(count % kCount), parity(count / kCount % 2) {}
};

struct Place {
  int batch;
  int head;
  int query;
};

__device__ __forceinline__ Place place(const Parameters& p, int tile) {
  const int sequence = tile / p.query_tiles;
  return {sequence / p.heads, sequence % p.heads, (tile % p.query_tiles) * kQueries};
}

template <int kHead>
__device__ __forceinline__ void copy(const Parameters& p, const CUtensorMap& queries,
                                     const CUtensorMap& keys, const CUtensorMap& values,
                                     Shared<kHead>& shared) {
  Segment segment;
  unsigned count = 0;
#pragma unroll 1
  for (int index = 0; shared.work.segment(blockIdx.x, index, segment); ++index) {
    const Place at = place(p, segment.tile);
    const Stage<kQueryStages> q(index);
    ptx::barrier_wait(&shared.query_empty[q.stage], q.parity ^ 1);
    ptx::barrier_expect(&shared.query_full[q.stage], sizeof(shared.query[0]));
    ptx::copy_tile(shared.query[q.stage], &queries, &shared.query_full[q.stage], 0, at.head,
                   at.query, at.batch);
#pragma unroll 1
    for (int block = segment.begin; block < segment.end; ++block, ++count) {
      const Stage<kStages> k(count);
      ptx::barrier_wait(&shared.key_empty[k.stage], k.parity ^ 1);
      ptx::barrier_expect(&shared.key_full[k.stage], sizeof(shared.key[0]));
      ptx::copy_tile(shared.key[k.stage], &keys, &shared.key_full[k.stage], 0, at.head,
                     block * kKeys, at.batch);
      ptx::barrier_wait(&shared.value_empty[k.stage], k.parity ^ 1);
      ptx::barrier_expect(&shared.value_full[k.stage], sizeof(shared.value[0]));
      ptx::copy_tile(shared.value[k.stage], &values, &shared.value_full[k.stage], block * kKeys, 0,
                     at.head, at.batch);
    }
  }
}

// Which of a CTA's threads this is, among those that compute.
struct Self {
  int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
  int thread = threadIdx.x % kGroupThreads;
  int lane = threadIdx.x % 32;

  // The thread's two rows of a tile.
  __device__ __forceinline__ int row(int which) const {
    return group * kRows + thread / 32 * 16 + which * 8 + lane / 4;
  }

  __device__ __forceinline__ void release(uint64_t* empty) const {
    if (lane == 0) ptx::barrier_arrive(empty);
  }
};

// One of the two rows of a tile that a thread shares with the three others of its quad.
struct Row {
  // From a biased sum to a logit in base 2.
  float scale;
  // A logit's maximum, biased like the sums: of the last block, and what the output is relative to.
  float maximum;
  float reference;
  // Of the products of the last block whose weights are rounded, when they are added to the output.
  float factor;
  // Of the weights, the thread's own columns.
  float sum;
};

// A warpgroup's share of one tile: 64 queries.
template <int kHead>
struct State {
  int32_t sums[kKeys / 2];
  // In the low bytes of both halves; sums[2 i] and its neighbour are in rounded[i].
  uint32_t rounded[kKeys / 4];
  uint32_t weights[kKeys / kDepth][4];
  int32_t added[kHead / 2];
  float output[kHead / 2];
  Row row[2];
};

__device__ __forceinline__ int32_t quad_max(int32_t x) {
  x = max(x, __shfl_xor_sync(~0u, x, 1));
  return max(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

template <int kHead>
__device__ __forceinline__ void read_scales(const Parameters& p, const Self& me, const Place& at,
                                            State<kHead>& s) {
  const float scale = p.key_scale[at.head] * p.logit_scale;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = at.query + me.row(r);
    const int64_t token = static_cast<int64_t>(at.batch) * p.queries + query;
    const float own = query < p.queries ? p.query_scale[token * p.heads + at.head] : 0.0f;
    s.row[r].scale = fmaxf(own * scale, kLeastScale);
  }
}

// As if a block before the first had added nothing.
template <int kHead>
__device__ __forceinline__ void begin(State<kHead>& s) {
#pragma unroll
  for (int i = 0; i < kHead / 2; ++i) {
    s.output[i] = 0.0f;
    s.added[i] = 0;
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    s.row[r].sum = s.row[r].factor = 0.0f;
    s.row[r].reference = -INFINITY;
  }
}

template <int kHead>
__device__ __forceinline__ void bias(State<kHead>& s) {
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) s.sums[i] = kBias;
  ptx::pin(s.sums);
}

template <int kHead>
__device__ __forceinline__ void issue_logits(State<kHead>& s, uint32_t query, uint32_t key) {
  ptx::products_fence();
#pragma unroll
  for (int d = 0; d < kHead; d += kDepth) {
    ptx::multiply_s8_s8(s.sums, ptx::operand<kHead>(query, d), ptx::operand<kHead>(key, d), true);
  }
  ptx::products_commit();
}

template <int kHead>
__device__ __forceinline__ void issue_values(State<kHead>& s, uint32_t value) {
  ptx::pin(s.added);
  ptx::products_fence();
#pragma unroll
  for (int k = 0; k < kKeys / kDepth; ++k) {
    ptx::multiply_u8_s8(s.added, s.weights[k], ptx::operand<kKeys>(value, k * kDepth), k > 0);
  }
  ptx::products_commit();
}

// Sums of keys from `valid` on, counted from the block's first, become the least there is.
template <int kHead>
__device__ __forceinline__ void mask(State<kHead>& s, int valid) {
  if (valid >= kKeys) return;
  const int column = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    if (i / 4 * 8 + column + i % 2 >= valid) s.sums[i] = kMasked;
  }
}

// 255 a and 255 b, rounded, in the low bytes of both halves: in fp16 the unit of 1024 is 1.
__device__ __forceinline__ uint32_t round_two(float a, float b) {
  const __half2 sum = __hfma2(__floats2half2_rn(a, b), __float2half2_rn(kLargestWeight),
                              __float2half2_rn(1024.0f));
  return *reinterpret_cast<const uint32_t*>(&sum);
}

// From sums to rounded weights, and to the rows' maxima.
template <int kHead>
__device__ __forceinline__ void exponentiate(State<kHead>& s) {
  // Biased sums are positive floats, which are in the order of their bits.
  int32_t largest[2] = {kMasked, kMasked};
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) largest[i / 2 % 2] = max(largest[i / 2 % 2], s.sums[i]);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Upwards, so that no weight exceeds 1: 256 would become 0 in a byte.
    s.row[r].maximum = __fmul_ru(__int_as_float(quad_max(largest[r])), s.row[r].scale);
  }
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) {
    const Row& row = s.row[i % 2];
    float weight[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      weight[j] = ptx::exp2_approximate(
          __fmaf_rn(__int_as_float(s.sums[2 * i + j]), row.scale, -row.maximum));
    }
    s.rounded[i] = round_two(weight[0], weight[1]);
  }
  ptx::pin(s.rounded);
}

// Moves a row's reference when its maximum has risen too far above. The branch is also what keeps the
// assembler from moving the work before it behind the wait after it.
template <int kHead>
__device__ __forceinline__ void move_references(State<kHead>& s) {
  const float above = fmaxf(s.row[0].maximum - s.row[0].reference,
                            s.row[1].maximum - s.row[1].reference);
  if (__any_sync(~0u, above > kReferenceSlack)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float moved = fmaxf(s.row[r].maximum, s.row[r].reference);
      const float shrink = ptx::exp2_approximate(s.row[r].reference - moved);
      s.row[r].reference = moved;
      s.row[r].factor *= shrink;
      s.row[r].sum *= shrink;
#pragma unroll
      for (int i = 0; i < kHead / 4; ++i) s.output[i / 2 * 4 + 2 * r + i % 2] *= shrink;
    }
  }
}

// The left operand of the product with the values. A thread's columns of 16 keys become four
// neighbouring ones of the operand: the ring's order of keys is made for this.
template <int kHead>
__device__ __forceinline__ void pack_weights(State<kHead>& s) {
#pragma unroll
  for (int i = 0; i < kKeys / 8; ++i) {
    const uint32_t* rounded = &s.rounded[i / 2 * 4 + i % 2];
    s.weights[i / 4][i % 4] = __byte_perm(rounded[0], rounded[2], 0x6420);
  }
#pragma unroll
  for (int i = 0; i < kKeys / kDepth; ++i) ptx::pin(s.weights[i]);
}

// Adds the last block's weights to the rows' sums.
template <int kHead>
__device__ __forceinline__ void weigh(State<kHead>& s) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    s.row[r].factor = ptx::exp2_approximate(s.row[r].maximum - s.row[r].reference);
    uint32_t sum = 0;
#pragma unroll
    for (int i = 0; i < kKeys / 16; ++i) {
      sum = __dp4a(s.weights[i / 2][i % 2 * 2 + r], 0x01010101u, sum);
    }
    s.row[r].sum = __fmaf_rn(static_cast<float>(sum), s.row[r].factor, s.row[r].sum);
  }
}

// Adds a block's products to the output.
template <int kHead>
__device__ __forceinline__ void add(State<kHead>& s) {
#pragma unroll
  for (int i = 0; i < kHead / 2; ++i) {
    const float added = static_cast<float>(s.added[i]);
    s.output[i] = __fmaf_rn(added, s.row[i / 2 % 2].factor, s.output[i]);
  }
}

// A part of a tile, for one warpgroup: `kHead / 8` times four floats of each thread's output, then its
// rows' references and sums.
template <int kHead>
__device__ __forceinline__ float4* part(const Parameters& p, const Self& me, int slot) {
  constexpr int kVectors = (kHead / 8 + 1) * kGroupThreads;
  return reinterpret_cast<float4*>(p.parts) +
         static_cast<int64_t>(slot * kGroups + me.group) * kVectors + me.thread;
}

// Writes this part of a tile. Whoever comes last puts the parts together, in the order of their keys,
// so that the result does not depend on who that is. False for all others.
template <int kHead>
__device__ __forceinline__ bool unite(const Parameters& p, const StreamK& work, const Self& me,
                                      const Segment& segment, State<kHead>& s) {
  constexpr int kVectors = kHead / 8;
  float4* own = part<kHead>(p, me, segment.slot);
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
    // Wraps to zero with the last one: ready for the next launch.
    last = atomicInc(&p.arrivals[segment.tile * kGroups + me.group], others) == others;
  }
  if (!ptx::named_barrier_any(barrier, kGroupThreads, last)) return false;
  __threadfence();
  float reference[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int cta = segment.first; cta <= segment.last; ++cta) {
    const float4* other = part<kHead>(p, me, work.slot(cta, segment.tile));
    const float4 rows = __ldcg(other + kVectors * kGroupThreads);
    reference[0] = fmaxf(reference[0], rows.x);
    reference[1] = fmaxf(reference[1], rows.z);
  }
  begin(s);
#pragma unroll 1
  for (int cta = segment.first; cta <= segment.last; ++cta) {
    const float4* other = part<kHead>(p, me, work.slot(cta, segment.tile));
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

__device__ __forceinline__ void store(const Parameters& p, int64_t element, float x, float y) {
  if (p.output_type == VIDC_BF16) {
    reinterpret_cast<__nv_bfloat162*>(p.output)[element / 2] = __floats2bfloat162_rn(x, y);
  } else if (p.output_type == VIDC_FP16) {
    reinterpret_cast<__half2*>(p.output)[element / 2] = __floats2half2_rn(x, y);
  } else {
    reinterpret_cast<__nv_fp8x2_storage_t*>(p.output)[element / 2] = __nv_cvt_float2_to_fp8x2(
        make_float2(x * p.output_factor, y * p.output_factor), __NV_SATFINITE, __NV_E4M3);
  }
}

template <int kHead>
__device__ __forceinline__ void finish(const Parameters& p, const Self& me, const Place& at,
                                       const State<kHead>& s) {
  const float* scale = p.value_scale + at.head * kHead;
  const float* mean = p.value_mean + at.head * kHead;
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
      store(p, start + channel, __fmaf_rn(s.output[4 * i + 2 * r] * share, by.x, plus.x),
            __fmaf_rn(s.output[4 * i + 2 * r + 1] * share, by.y, plus.y));
    }
  }
}

template <int kHead>
__device__ __forceinline__ void dump(const Parameters& p, const Self& me, const State<kHead>& s) {
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    const int column = i / 4 * 8 + 2 * (me.lane % 4) + i % 2;
    p.products[me.row(i / 2 % 2) * kKeys + column] = s.sums[i] - kBias;
  }
}

// The barriers at which two warpgroups take turns to multiply.
struct Turns {
  static constexpr int kBoth = kGroups * kGroupThreads;
  int own;
  int other;

  __device__ __forceinline__ explicit Turns(int group)
      : own(kFirstTurnBarrier + group), other(kFirstTurnBarrier + 1 - group) {}
  __device__ __forceinline__ void take() const { ptx::named_barrier_sync(own, kBoth); }
  __device__ __forceinline__ void give() const { ptx::named_barrier_arrive(other, kBoth); }
};

// From one block of keys, the `count`-th of this CTA, to the next. Before and after it the last
// block's weights are rounded, those of the one before it are multiplied but not added, and nothing is
// under way.
template <int kHead, bool kTurns>
__device__ __forceinline__ void step(const Self& me, const Turns& turns, State<kHead>& s,
                                     uint32_t query, unsigned count, int valid,
                                     Shared<kHead>& shared) {
  const Stage<kStages> now(count), next(count + 1);
  pack_weights(s);
  bias(s);
  ptx::barrier_wait(&shared.key_full[next.stage], next.parity);
  if (kTurns) turns.take();
  issue_logits(s, query, ptx::shared_address(shared.key[next.stage]));
  // Waiting here, not later, keeps the assembler from adding before the products are issued.
  ptx::barrier_wait(&shared.value_full[now.stage], now.parity);
  add(s);
  weigh(s);
  issue_values(s, ptx::shared_address(shared.value[now.stage]));
  if (kTurns) turns.give();
  ptx::products_wait<1>();
  ptx::pin(s.sums);
  me.release(&shared.key_empty[next.stage]);
  mask(s, valid);
  exponentiate(s);
  move_references(s);
  ptx::products_wait<0>();
  ptx::pin(s.added);
  me.release(&shared.value_empty[now.stage]);
}

template <int kHead, bool kTurns, bool kDump>
__device__ __forceinline__ void compute(const Parameters& p, Shared<kHead>& shared) {
  const Self me;
  const Turns turns(me.group);
  Segment segment;
  State<kHead> s;
  unsigned count = 0;
  if (kTurns && me.group == 1) turns.give();

#pragma unroll 1
  for (int index = 0; shared.work.segment(blockIdx.x, index, segment); ++index) {
    read_scales(p, me, place(p, segment.tile), s);
    begin(s);
    bias(s);
    const Stage<kQueryStages> q(index);
    ptx::barrier_wait(&shared.query_full[q.stage], q.parity);
    const uint32_t query = ptx::shared_address(&shared.query[q.stage][me.group * kRows * kHead]);
    const Stage<kStages> k(count);
    ptx::barrier_wait(&shared.key_full[k.stage], k.parity);
    issue_logits(s, query, ptx::shared_address(shared.key[k.stage]));
    ptx::products_wait<0>();
    ptx::pin(s.sums);
    me.release(&shared.key_empty[k.stage]);
    if (kDump && segment.tile == 0 && segment.begin == 0) dump(p, me, s);
    const int valid_after = shared.valid - segment.end * kKeys;
    mask(s, shared.valid - segment.begin * kKeys);
    exponentiate(s);
    move_references(s);
#pragma unroll 1
    for (int valid = shared.valid - (segment.begin + 1) * kKeys; valid > valid_after; valid -= kKeys) {
      step<kHead, kTurns>(me, turns, s, query, count++, valid, shared);
    }
    me.release(&shared.query_empty[q.stage]);

    const Stage<kStages> last(count++);
    pack_weights(s);
    add(s);
    weigh(s);
    ptx::barrier_wait(&shared.value_full[last.stage], last.parity);
    issue_values(s, ptx::shared_address(shared.value[last.stage]));
    ptx::products_wait<0>();
    ptx::pin(s.added);
    me.release(&shared.value_empty[last.stage]);
    add(s);

#pragma unroll
    for (int r = 0; r < 2; ++r) s.row[r].sum = quad_sum(s.row[r].sum);
    // Again, to have kept less of it in registers.
    shared.work.segment(blockIdx.x, index, segment);
    const Place at = place(p, segment.tile);
    if (segment.slot < 0 || unite(p, shared.work, me, segment, s)) finish(p, me, at, s);
  }
}

template <int kHead, bool kTurns, bool kDump>
__global__ void __launch_bounds__(kThreads, 1)
    kernel(const __grid_constant__ Parameters p, const __grid_constant__ CUtensorMap queries,
           const __grid_constant__ CUtensorMap keys, const __grid_constant__ CUtensorMap values) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Shared<kHead>& shared = *reinterpret_cast<Shared<kHead>*>(memory);
  // Swizzled tiles rely on it, and nothing else would tell.
  if (ptx::shared_address(memory) % alignof(Shared<kHead>) != 0) __trap();
  if (threadIdx.x == 0) {
    ptx::prefetch_map(&queries);
    ptx::prefetch_map(&keys);
    ptx::prefetch_map(&values);
    constexpr int kComputeWarps = kGroups * kGroupThreads / 32;
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
    // Clamped, because the barriers never complete without a block.
    shared.valid = static_cast<int>(min(max(*p.valid_length, int64_t{1}), int64_t{p.slots}));
    shared.work = StreamK(p.tiles, (shared.valid + kKeys - 1) / kKeys, gridDim.x);
  }
  __syncthreads();

  if (threadIdx.x < kGroupThreads) {
    ptx::give_up_registers<kCopyRegisters>();
    if (threadIdx.x == 0) copy(p, queries, keys, values, shared);
  } else {
    ptx::take_registers<kComputeRegisters>();
    compute<kHead, kTurns, kDump>(p, shared);
  }
}

}  // namespace vidc::ring_attention
