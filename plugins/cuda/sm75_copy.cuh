// Copies from global to shared memory; asynchronous from sm_80 on.
#pragma once

#include <cstdint>

namespace vidc::copy {

// Copies 16 bytes, or writes zeros unless `there`.
__device__ __forceinline__ void begin(void* to, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(there ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(to) =
      there ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
#endif
}

// Commits the thread's copies since the last commit as a group.
__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the thread's last `kGroups` groups are pending.
template <int kGroups>
__device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

}  // namespace vidc::copy
