// The transforms of Winograd's F(m, 3), as in vidc.plugins.ops.winograd_tiles.
#pragma once

namespace vidc {

// `input` has the factors of m + 2 values in each of m + 2 inputs, `output` those of m + 2 products
// in each of m results. Loops over them are unrolled, so each factor is a constant to the compiler,
// which leaves out those that are zero.
template <int Tile>
struct Winograd;

template <>
struct Winograd<2> {
  static __device__ __forceinline__ float input(int row, int column) {
    constexpr float factors[4][4] = {{-1, 0, 1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, -1, 0, 1}};
    return factors[row][column];
  }
  static __device__ __forceinline__ float output(int row, int column) {
    constexpr float factors[2][4] = {{1, 1, 1, 0}, {0, 1, -1, 1}};
    return factors[row][column];
  }
};

template <>
struct Winograd<3> {
  static __device__ __forceinline__ float input(int row, int column) {
    constexpr float factors[5][5] = {{-0.625f, -1.5625f, 0.4f, 1, 0},
                                     {0.625f, -1.5625f, -0.4f, 1, 0},
                                     {-0.2f, -0.16f, 1.25f, 1, 0},
                                     {0.2f, -0.16f, -1.25f, 1, 0},
                                     {0.25f, 0, -1.7225f, 0, 1}};
    return factors[row][column];
  }
  static __device__ __forceinline__ float output(int row, int column) {
    constexpr float factors[3][5] = {{1, 1, 1, 1, 0},
                                     {0.4f, -0.4f, 1.25f, -1.25f, 0},
                                     {0.16f, 0.16f, 1.5625f, 1.5625f, 1}};
    return factors[row][column];
  }
};

template <>
struct Winograd<4> {
  static __device__ __forceinline__ float input(int row, int column) {
    constexpr float factors[6][6] = {{0.5f, 0, -97.f / 72, 0, 0.5f, 0},
                                     {0, -0.75f, -1.125f, 1.f / 3, 0.5f, 0},
                                     {0, 0.75f, -1.125f, -1.f / 3, 0.5f, 0},
                                     {0, -2.f / 3, -4.f / 9, 1.5f, 1, 0},
                                     {0, 2.f / 3, -4.f / 9, -1.5f, 1, 0},
                                     {0, 0.5f, 0, -97.f / 72, 0, 0.5f}};
    return factors[row][column];
  }
  static __device__ __forceinline__ float output(int row, int column) {
    constexpr float factors[4][6] = {{1, 1, 1, 1, 1, 0},
                                     {0, 2.f / 3, -2.f / 3, 1.5f, -1.5f, 0},
                                     {0, 4.f / 9, 4.f / 9, 2.25f, 2.25f, 0},
                                     {0, 8.f / 27, -8.f / 27, 3.375f, -3.375f, 1}};
    return factors[row][column];
  }
};

}  // namespace vidc
