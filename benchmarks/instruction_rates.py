"""Measures matrix products and instructions of a Hopper multiprocessor per cycle.

    python benchmarks/instruction_rates.py > rates.cu    # writes CUDA source; needs nothing
    nvcc -gencode arch=compute_90a,code=sm_90a rates.cu -o rates && ./rates > rates.jsonl

Products: 32 of one shape one after another, by one warpgroup or by two at once. Instructions: a
loop of 16 independent ones. The end of the loop issues five more, so an instruction that issues in
every cycle measures 97 results of 128, and one that takes two cycles 59 of 64.
"""

from collections.abc import Iterator

SHAPES = (64, 128, 256)
KINDS = {
    "s8": ("s8.s8", "s32", 32),
    "u8s8": ("u8.s8", "s32", 32),
    "e4m3": ("e4m3.e4m3", "f32", 32),
    "bf16": ("bf16.bf16", "f32", 16),
}
"""Types of the operands, type of the sums, depth."""

INSTRUCTIONS = {
    "ex2.f32": "ex2.approx.ftz.f32 %0, %0;",
    "ex2.f16x2": "ex2.approx.f16x2 %0, %0;",
    "fma.f32": "fma.rn.f32 %0, %0, %0, %0;",
    "fma.f16x2": "fma.rn.f16x2 %0, %0, %0, %0;",
    "cvt.f32.s32": "cvt.rn.f32.s32 %0, %0;",
    "cvt.f16x2.f32": "cvt.rn.f16x2.f32 %0, %0, %0;",
    "max.s32": "max.s32 %0, %0, 5;",
    "max.f32": "max.f32 %0, %0, 0f3f000000;",
    "prmt": "prmt.b32 %0, %0, %0, 0x6420;",
    "dp4a": "dp4a.u32.u32 %0, %0, %0, %0;",
    "add.s32": "add.s32 %0, %0, %0;",
}
"""``%0`` is a register of 32 bits."""

HEAD = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

constexpr int kLoops = 64, kProducts = 32, kPasses = 512, kChains = 16, kMultiprocessors = 132;

// 64 KiB of zeros, swizzled in rows of 128 bytes: operands of every shape.
__device__ uint64_t operand(uint32_t address) {
  return uint64_t{address >> 4} | uint64_t{1} << 16 | uint64_t{64} << 32 | uint64_t{1} << 62;
}

__device__ void report(long long* out, long long cycles) {
  if (threadIdx.x == 0) out[blockIdx.x] = cycles;
}

static double first(const long long* out) {
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) {
    std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
    std::exit(1);
  }
  long long cycles;
  cudaMemcpy(&cycles, out, sizeof cycles, cudaMemcpyDeviceToHost);
  return static_cast<double>(cycles);
}
"""

PRODUCT = r"""
__global__ void __launch_bounds__(256, 1) %(name)s(long long* out) {
  extern __shared__ __align__(1024) uint8_t memory[];
  for (int i = threadIdx.x; i < 65536 / 4; i += blockDim.x) reinterpret_cast<int*>(memory)[i] = 0;
  __syncthreads();
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const uint64_t a = operand(base + 32768 + threadIdx.x / 128 * 8192), b = operand(base);
  uint32_t r[4] = {1, 2, 3, 4};
  for (uint32_t& x : r) asm volatile("" : "+r"(x));
  %(sum)s d[%(sums)d] = {};
  const long long start = clock64();
#pragma unroll 1
  for (int i = 0; i < kLoops; ++i) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int j = 0; j < kProducts; ++j) {
      asm volatile("{.reg .pred p; setp.eq.b32 p, 1, 1; %(assembly)s}" : %(outputs)s : %(inputs)s);
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  const long long cycles = clock64() - start;
  float used = r[0] + a;
  for (int i = 0; i < %(sums)d; ++i) used += d[i];
  report(out, cycles + (used == 1.2345f));
}
static void run_%(name)s(long long* out) {
  constexpr int kBytes = 98304;
  cudaFuncSetAttribute(%(name)s, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  for (int groups = 1; groups <= 2; ++groups) {
    for (int i = 0; i < 3; ++i) %(name)s<<<kMultiprocessors, groups * 128, kBytes>>>(out);
    const double cycles = first(out) / (kLoops * kProducts);
    std::printf("{\"product\": \"%(name)s\", \"warpgroups\": %%d, ", groups);
    std::printf("\"cycles\": %%.1f, \"mac\": %%.0f}\n", cycles,
                groups * 64.0 * %(columns)d * %(depth)d / cycles);
  }
}
"""

INSTRUCTION = r"""
__global__ void op_%(index)d(long long* out) {
  uint32_t x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = __float_as_uint(threadIdx.x + i);
  __syncthreads();
  const long long start = clock64();
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) {
      asm volatile("{.reg .b32 t; mov.b32 t, %%0; %(assembly)s mov.b32 %%0, t;}" : "+r"(x[i]));
    }
  }
  const long long cycles = clock64() - start;
  uint32_t used = 0;
  for (int i = 0; i < kChains; ++i) used += x[i];
  report(out, cycles + (used == 12345));
}
static void run_op_%(index)d(long long* out) {
  for (int warps = 4; warps <= 16; warps *= 2) {
    for (int i = 0; i < 3; ++i) op_%(index)d<<<kMultiprocessors, warps * 32>>>(out);
    std::printf("{\"instruction\": \"%(name)s\", \"warps\": %%d, \"results\": %%.2f}\n", warps,
                warps * 32.0 * kPasses * kChains / first(out));
  }
}
"""


def product(name: str, columns: int, kind: str, from_registers: bool) -> str:
    """Source of one shape; rows come from shared memory or from registers."""
    types, sums_type, depth = KINDS[kind]
    sums = columns // 2
    registers = ", ".join(f"%{i}" for i in range(sums))
    if from_registers:
        rows = "{" + ", ".join(f"%{sums + i}" for i in range(4)) + "}"
        inputs = ", ".join(f'"r"(r[{i}])' for i in range(4)) + ', "l"(b)'
        second = f"%{sums + 4}"
    else:
        rows, second, inputs = f"%{sums}", f"%{sums + 1}", '"l"(a), "l"(b)'
    # Signs, and for bf16 whether operands in shared memory are transposed.
    options = {"s32": "p", "f32": "p, 1, 1"}[sums_type]
    if kind == "bf16":
        options += ", 0" if from_registers else ", 0, 0"
    constraint = "r" if sums_type == "s32" else "f"
    return PRODUCT % {
        "name": name,
        "sum": "int" if sums_type == "s32" else "float",
        "sums": sums,
        "columns": columns,
        "depth": depth,
        "assembly": f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{sums_type}.{types} "
        f"{{{registers}}}, {rows}, {second}, {options};",
        "outputs": ", ".join(f'"+{constraint}"(d[{i}])' for i in range(sums)),
        "inputs": inputs,
    }


def source() -> Iterator[str]:
    """The program, in pieces."""
    yield HEAD
    names = []
    for columns in SHAPES:
        for kind in KINDS:
            # Sums of 256 columns leave no registers for rows.
            for rows in ("shared",) if columns == 256 else ("shared", "registers"):
                names.append(f"{kind}_n{columns}_{rows}")
                yield product(names[-1], columns, kind, rows == "registers")
    for index, (name, assembly) in enumerate(INSTRUCTIONS.items()):
        names.append(f"op_{index}")
        taken = assembly.replace("%0", "t")
        yield INSTRUCTION % {"index": index, "name": name, "assembly": taken}
    calls = "\n".join(f"  run_{name}(out);" for name in names)
    yield f"""
int main() {{
  long long* out;
  cudaMalloc(&out, kMultiprocessors * sizeof *out);
{calls}
}}
"""


if __name__ == "__main__":
    print("".join(source()))
