// Writes values to their slots of a transposed 8-bit ring, [batch, heads, head_dim, value_slots]:
// 8-bit matrix instructions need the reduced index, the slot, to be contiguous. Slots from
// `ring.slots` on are padding, which is not written.
//
// Each 16 slots have the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15: a thread's softmax weights
// are then the operand that it multiplies the values with.
#pragma once

#include "sm75_ring.cuh"
#include "sm75_scale.cuh"

namespace vidc {

constexpr int kTileSlots = 32;  // one memory sector per channel
constexpr int kGroup = 16;

struct ValueTranspose {
  const void* values;  // values of the first token and head in [batch, tokens, 3 * width]
  void* cache;
  const float* scale;  // [heads]
  Ring ring;
  int value_slots;  // of a row of the cache, a multiple of kGroup
  int tokens;
  int heads;
  int tiles;  // of a head: transpose_tiles(tokens)
};

// Returns the largest number of tiles of a launch: a block's slots are at most three runs (in the
// sink, up to the ring's end, after its wrap), each with a partial tile at both ends.
inline int transpose_tiles(int64_t tokens) {
  return static_cast<int>((tokens + 3 * 2 * (kTileSlots - 1)) / kTileSlots) + 1;
}

// The slots of one tile that receive tokens of the block.
struct TileSlots {
  int base;   // first slot of the tile, a multiple of its size
  int begin;  // the first slot with a token
  int end;    // one past the last, `begin` if there is none
  int token;  // token of slot `begin`
};

__device__ __forceinline__ TileSlots tile_slots(const Ring& ring, int tokens, int tile) {
  const int64_t position = *ring.position;
  if (position < 0) return {0, 0, 0, 0};
  const int turn = ring.slots - ring.sink;
  const int in_sink =
      position < ring.sink
          ? static_cast<int>(min(ring.sink - position, static_cast<int64_t>(tokens)))
          : 0;
  const int offset =
      in_sink < tokens ? static_cast<int>((position + in_sink - ring.sink) % turn) : 0;
  const int to_end = min(tokens - in_sink, turn - offset);
  const int starts[] = {in_sink ? static_cast<int>(position) : 0, ring.sink + offset, ring.sink};
  // A block with more tokens than the ring rotates would share slots; its last tokens are left out.
  const int counts[] = {in_sink, to_end, min(tokens - in_sink - to_end, offset)};
  int token = 0;
#pragma unroll
  for (int run = 0; run < 3; ++run) {
    const int skipped = starts[run] / kTileSlots, end = starts[run] + counts[run];
    const int tiles = counts[run] ? (end + kTileSlots - 1) / kTileSlots - skipped : 0;
    if (tile < tiles) {
      const int base = (skipped + tile) * kTileSlots;
      const int begin = max(base, starts[run]);
      return {base, begin, min(base + kTileSlots, end), token + begin - starts[run]};
    }
    tile -= tiles;
    token += counts[run];
  }
  return {0, 0, 0, 0};
}

// Returns the slot at a position of a group of 16; `position_of` is the inverse.
__device__ __forceinline__ int slot_at(int position) {
  return position / 4 * 2 + position % 2 + position / 2 % 2 * 8;
}
__device__ __forceinline__ int position_of(int slot) {
  return slot % 8 / 2 * 4 + slot % 2 + slot / 8 * 2;
}

// Writes one tile's values of a head. Every thread of a block calls it; any number of them serves.
template <typename T, typename Output, int HeadDim>
__device__ __forceinline__ void transpose_values(const ValueTranspose& given, int tile_index,
                                                 int head, int batch) {
  constexpr int kLanes = HeadDim / kVector, kVectors = kTileSlots * kLanes;
  constexpr int kSteps = 3;  // loads of a thread in flight
  __shared__ __align__(16) Output tile[kTileSlots][HeadDim];
  __shared__ TileSlots shared_slots;
  if (threadIdx.x == 0) shared_slots = tile_slots(given.ring, given.tokens, tile_index);
  __syncthreads();
  const TileSlots slots = shared_slots;
  if (slots.begin == slots.end) return;

  const int threads = blockDim.x, width = given.heads * HeadDim;
  const int64_t of_head = static_cast<int64_t>(batch) * given.heads + head;
  for (int first = threadIdx.x; first < kVectors; first += kSteps * threads) {
    Raw<T> raw[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int index = first + step * threads, slot = slots.base + index / kLanes;
      raw[step] = {};
      if (slot < slots.begin || slot >= slots.end) continue;
      const int64_t row =
          static_cast<int64_t>(batch) * given.tokens + slots.token + slot - slots.begin;
      const int channel = head * HeadDim + index % kLanes * kVector;
      raw[step] = load_once(static_cast<const T*>(given.values) + row * 3 * width + channel);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int index = first + step * threads;
      if (index >= kVectors) continue;
      float value[kVector];
      unpack(raw[step], value);
      store_scaled(&tile[index / kLanes][index % kLanes * kVector], value, given.scale[head]);
    }
  }
  __syncthreads();

  for (int item = threadIdx.x; item < kTileSlots / kGroup * HeadDim; item += threads) {
    const int group = item / HeadDim * kGroup, row = item % HeadDim;
    Output* to = static_cast<Output*>(given.cache) + (of_head * HeadDim + row) * given.value_slots +
                 slots.base + group;
    const int begin = slots.begin - slots.base - group, end = slots.end - slots.base - group;
    if (begin <= 0 && end >= kGroup) {
      uint4 words;
      auto* values = reinterpret_cast<Output*>(&words);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) values[i] = tile[group + slot_at(i)][row];
      *reinterpret_cast<uint4*>(to) = words;
    } else {
      for (int i = max(begin, 0); i < min(end, kGroup); ++i)
        to[position_of(i)] = tile[group + i][row];
    }
  }
}

}  // namespace vidc
