// Data of the ring attention kernel: its arguments, a CTA's shared memory, and the copies into it.
//
// `Tile` is Int8Tile or E4m3Tile. Its kGroups is the number of warpgroups that compute, each with
// kRows queries. Its tiles of values have kOnes channels of ones behind the head's kHead channels.

#pragma once

#include <cstdint>

#include "sm90_ptx.cuh"
#include "ring_attention.h"
#include "stream_k.cuh"

namespace vidc::ring_attention {

constexpr int kRows = 64;           // queries of a warpgroup
constexpr int kKeys = 128;          // keys of a block
constexpr int kGroupThreads = 128;  // threads of a warpgroup
constexpr int kStages = 4;          // blocks of keys, and of values, in shared memory
constexpr int kQueryStages = 2;     // tiles of queries in shared memory
constexpr int kDepth = 32;          // depth of an 8-bit product
constexpr int kCopyRegisters = 24;

constexpr int kMostGroups = 3;
constexpr int kFirstTurnBarrier = 1;  // 0 is the whole CTA's.
constexpr int kFirstGroupBarrier = kFirstTurnBarrier + kMostGroups;

template <typename Tile>
constexpr int kQueries = Tile::kGroups * kRows;
template <typename Tile>
constexpr int kThreads = (1 + Tile::kGroups) * kGroupThreads;

// A scale of zero would turn masked logits into NaN.
constexpr float kLeastScale = 1e-30f;

struct Parameters {
  const float* query_scale;
  const float* key_scale;
  const float* value_scale;
  const float* value_mean;
  const int64_t* valid_length;
  const float* output_scale;
  void* output;
  float* parts;
  unsigned int* arrivals;
  void* products;
  int queries;
  int slots;
  int heads;
  int tiles;
  int query_tiles;
  int output_type;
  float logit_scale;
};

template <typename Tile>
struct alignas(1024) Shared {
  static constexpr int kHead = Tile::kHead;
  uint8_t query[kQueryStages][kQueries<Tile> * kHead];
  uint8_t key[kStages][kKeys * kHead];
  uint8_t value[kStages][(kHead + Tile::kOnes) * kKeys];
  uint64_t query_full[kQueryStages];
  uint64_t query_empty[kQueryStages];
  uint64_t key_full[kStages];
  uint64_t key_empty[kStages];
  uint64_t value_full[kStages];
  uint64_t value_empty[kStages];
  // In shared memory because the loop over keys leaves no registers.
  StreamK work;
  int valid;
};

// The stage and phase of the `count`-th item of a ring of stages.
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

template <typename Tile>
__device__ __forceinline__ Place place(const Parameters& p, int tile) {
  const int sequence = tile / p.query_tiles;
  return {sequence / p.heads, sequence % p.heads, (tile % p.query_tiles) * kQueries<Tile>};
}

template <typename Tile>
__device__ __forceinline__ void copy(const Parameters& p, const CUtensorMap& queries,
                                     const CUtensorMap& keys, const CUtensorMap& values,
                                     Shared<Tile>& shared) {
  Segment segment;
  unsigned count = 0;
#pragma unroll 1
  for (int index = 0; shared.work.segment(blockIdx.x, index, segment); ++index) {
    const Place at = place<Tile>(p, segment.tile);
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
      ptx::barrier_expect(&shared.value_full[k.stage], Tile::kHead * kKeys);
      ptx::copy_tile(shared.value[k.stage], &values, &shared.value_full[k.stage], block * kKeys, 0,
                     at.head, at.batch);
    }
  }
}

// Position of a thread among the computing threads of a CTA.
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

// Factor from the product of a row's query and a key to a logit in base 2.
__device__ __forceinline__ float logit_scale(const Parameters& p, const Self& me, const Place& at,
                                             int which) {
  const int query = at.query + me.row(which);
  const int64_t sequence = static_cast<int64_t>(at.batch) * p.heads + at.head;
  const float own = query < p.queries ? p.query_scale[sequence * p.queries + query] : 0.0f;
  const float scale = own * (p.key_scale[at.head] * p.logit_scale);
  return scale < kLeastScale ? kLeastScale : scale;  // fmaxf would lose a NaN.
}

}  // namespace vidc::ring_attention
