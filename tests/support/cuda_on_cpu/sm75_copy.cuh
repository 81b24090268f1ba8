// Copies to shared memory on a CPU, made as late as they may be: when a thread waits for them.
#pragma once

#include <cstring>
#include <deque>
#include <vector>

#include "cuda_runtime_api.h"

namespace vidc::copy {

struct Copy {
  void* to;
  const void* from;
  bool there;
};
inline std::vector<Copy> begun[1024];
inline std::deque<std::vector<Copy>> groups[1024];

inline void begin(void* to, const void* from, bool there) {
  begun[threadIdx.x].push_back({to, from, there});
}

inline void commit() {
  groups[threadIdx.x].push_back(std::move(begun[threadIdx.x]));
  begun[threadIdx.x].clear();
}

template <int kGroups>
void wait() {
  auto& pending = groups[threadIdx.x];
  for (; pending.size() > kGroups; pending.pop_front()) {
    for (const Copy& copy : pending.front()) {
      if (copy.there)
        std::memcpy(copy.to, copy.from, 16);
      else
        std::memset(copy.to, 0, 16);
    }
  }
}

// Between blocks.
inline void forget() {
  for (auto& pending : groups) pending.clear();
}

}  // namespace vidc::copy
