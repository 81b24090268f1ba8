// Slots of tokens in a ring with a sink.
#pragma once

#include <cstdint>

namespace vidc {

struct Ring {
  const int64_t* position;  // absolute index of the block's first token
  int slots;
  int sink;
};

// Returns the slot of a token of the block, -1 if it has none. The 64-bit division takes about a
// hundred instructions.
__device__ __forceinline__ int ring_slot(const Ring& ring, int token) {
  const int64_t at = *ring.position + token;
  if (at < ring.sink) return at < 0 ? -1 : static_cast<int>(at);
  return ring.sink + static_cast<int>((at - ring.sink) % (ring.slots - ring.sink));
}

}  // namespace vidc
