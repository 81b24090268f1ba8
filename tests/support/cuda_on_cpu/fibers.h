// The threads of a CUDA block on one CPU thread: each runs until it has to wait for others.

#pragma once

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx(0, 0, 0), blockIdx(0, 0, 0), gridDim, blockDim;

namespace fibers {

constexpr size_t kStackBytes = 256 << 10;

struct Fiber {
  ucontext_t context;
  bool done = false;
};
// Kept from block to block.
inline std::vector<std::unique_ptr<char[]>> stacks;

inline ucontext_t scheduler;
inline std::vector<Fiber> all;
inline std::function<void()> body;
inline bool progress;
// The last thread first: what is read of others without waiting for them is not there yet.
inline bool backwards = false;
// What happens by itself once all threads wait; false if nothing does.
inline std::function<bool()> when_idle;

inline void yield() { swapcontext(&all[threadIdx.x].context, &scheduler); }

// Whoever changes what others may wait for calls this, or they are taken to wait for ever.
inline void changed() { progress = true; }

template <typename Condition>
void wait(Condition condition) {
  while (!condition()) yield();
  changed();
}

inline void enter() {
  body();
  all[threadIdx.x].done = true;
  changed();
  yield();
}

// Runs one block to its end; false if all of its threads wait for each other.
inline bool run(unsigned threads, std::function<void()> kernel) {
  body = std::move(kernel);
  all = std::vector<Fiber>(threads);
  blockDim.x = threads;
  while (stacks.size() < threads) stacks.emplace_back(new char[kStackBytes]);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = all[i];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks[i].get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
  }
  for (bool left = true; left;) {
    left = false;
    progress = false;
    for (unsigned turn = 0; turn < threads; ++turn) {
      const unsigned i = backwards ? threads - 1 - turn : turn;
      if (all[i].done) continue;
      left = true;
      threadIdx.x = i;
      swapcontext(&scheduler, &all[i].context);
    }
    if (left && !progress && !when_idle()) {
      std::fprintf(stderr, "block %u: its threads wait for each other\n", blockIdx.x);
      return false;
    }
  }
  return true;
}

// A barrier that threads may pass again and again.
class Barrier {
 public:
  void arrive(unsigned threads) {
    if (++arrived_ == threads) {
      arrived_ = 0;
      ++generation_;
    }
    changed();
  }
  void sync(unsigned threads) {
    const unsigned generation = generation_;
    arrive(threads);
    wait([&] { return generation_ != generation; });
  }

 private:
  unsigned arrived_ = 0;
  unsigned generation_ = 0;
};

}  // namespace fibers
