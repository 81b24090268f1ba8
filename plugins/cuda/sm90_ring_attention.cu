// Host side of ring attention on sm_90: checks, tensor maps and launch.

#include "sm90_ring_attention.cuh"

#include <cmath>

namespace {

using namespace vidc::ring_attention;

constexpr int kAlignment = 16;

using Encode = decltype(&cuTensorMapEncodeTiled);

// Looked up through the CUDA runtime, so nothing links the driver's library.
cudaError_t find_encode(Encode* encode) {
  static Encode found = nullptr;
  if (found == nullptr) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    if (error != cudaSuccess) return error;
    if (result != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
    found = reinterpret_cast<Encode>(function);
  }
  *encode = found;
  return cudaSuccess;
}

// Map of a contiguous tensor of bytes with four dimensions, innermost first.
cudaError_t encode(CUtensorMap* map, const void* address, const cuuint64_t (&sizes)[4],
                   const cuuint32_t (&box)[4]) {
  Encode encode_tiled = nullptr;
  const cudaError_t error = find_encode(&encode_tiled);
  if (error != cudaSuccess) return error;
  const cuuint64_t strides[3] = {sizes[0], sizes[0] * sizes[1], sizes[0] * sizes[1] * sizes[2]};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result = encode_tiled(
      map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, const_cast<void*>(address), sizes, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE,
      box[0] == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

bool aligned(const void* pointer) {
  return pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0;
}

bool valid(const VidcRingAttention& a) {
  return a.batch > 0 && a.queries > 0 && a.slots > 0 && a.heads > 0 && a.ctas >= 0 &&
         (a.head_dim == 64 || a.head_dim == 128) &&
         a.value_slots >= a.slots && a.value_slots % kAlignment == 0 &&
         (a.format == VIDC_RING_INT8 || a.format == VIDC_RING_E4M3) && a.output_type >= VIDC_BF16 &&
         a.output_type <= VIDC_E4M3 &&
         (a.output_type == VIDC_E4M3) == (a.output_scale != nullptr) && aligned(a.query) && aligned(a.query_scale) &&
         aligned(a.key) && aligned(a.key_scale) && aligned(a.value) && aligned(a.value_scale) &&
         aligned(a.value_mean) && aligned(a.output) && aligned(a.workspace) &&
         a.valid_length != nullptr;
}

// Warpgroups that share a tile's queries.
int groups(const VidcRingAttention& a) {
  return a.format == VIDC_RING_E4M3 ? E4m3Tile<128>::kGroups : Int8Tile<128>::kGroups;
}

int query_tiles(const VidcRingAttention& a) {
  const int queries = groups(a) * kRows;
  return (a.queries + queries - 1) / queries;
}

int tiles(const VidcRingAttention& a) { return a.batch * a.heads * query_tiles(a); }

cudaError_t ctas(const VidcRingAttention& a, int* count) {
  *count = a.ctas;
  if (a.ctas > 0) return cudaSuccess;
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

// Arrival counters lie first: they are zero between launches, whatever the sizes of the parts.
size_t arrival_bytes(const VidcRingAttention& a) {
  const size_t bytes = sizeof(unsigned int) * groups(a) * tiles(a);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t part_bytes(const VidcRingAttention& a) {
  return sizeof(float4) * kGroupThreads * groups(a) * (a.head_dim / 8 + 1);
}

template <typename Tile, bool kDump>
cudaError_t launch(const VidcRingAttention& a, cudaStream_t stream) {
  constexpr int kHead = Tile::kHead;
  const auto size = [](int n) { return static_cast<cuuint64_t>(n); };
  CUtensorMap queries, keys, values;
  cudaError_t error = encode(&queries, a.query,
                             {kHead, size(a.heads), size(a.queries), size(a.batch)},
                             {kHead, 1, kQueries<Tile>, 1});
  if (error != cudaSuccess) return error;
  error = encode(&keys, a.key, {kHead, size(a.heads), size(a.slots), size(a.batch)},
                 {kHead, 1, kKeys, 1});
  if (error != cudaSuccess) return error;
  error = encode(&values, a.value, {size(a.value_slots), kHead, size(a.heads), size(a.batch)},
                 {kKeys, kHead, 1, 1});
  if (error != cudaSuccess) return error;

  int grid = 0;
  error = ctas(a, &grid);
  if (error != cudaSuccess) return error;
  // The limit of StreamK's 32-bit arithmetic.
  const int64_t blocks = (a.slots + kKeys - 1) / kKeys;
  if (blocks * grid * grid > INT32_MAX) return cudaErrorInvalidValue;
  Parameters p;
  p.query_scale = a.query_scale;
  p.key_scale = a.key_scale;
  p.value_scale = a.value_scale;
  p.value_mean = a.value_mean;
  p.valid_length = a.valid_length;
  p.output_scale = a.output_scale;
  p.output = a.output;
  p.arrivals = static_cast<unsigned int*>(a.workspace);
  p.parts = reinterpret_cast<float*>(static_cast<char*>(a.workspace) + arrival_bytes(a));
  p.products = a.products;
  p.queries = a.queries;
  p.slots = a.slots;
  p.heads = a.heads;
  p.tiles = tiles(a);
  p.query_tiles = query_tiles(a);
  p.output_type = a.output_type;
  p.logit_scale = static_cast<float>(1.4426950408889634 / std::sqrt(kHead));

  constexpr int kBytes = sizeof(Shared<Tile>);
  error = cudaFuncSetAttribute(kernel<Tile, kDump>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               kBytes);
  if (error != cudaSuccess) return error;
  kernel<Tile, kDump><<<grid, kThreads<Tile>, kBytes, stream>>>(p, queries, keys, values);
  return cudaGetLastError();
}

template <typename Tile>
cudaError_t dispatch(const VidcRingAttention& a, cudaStream_t stream) {
  return a.products == nullptr ? launch<Tile, false>(a, stream) : launch<Tile, true>(a, stream);
}

template <template <int> class Tile>
cudaError_t dispatch(const VidcRingAttention& a, cudaStream_t stream) {
  return a.head_dim == 64 ? dispatch<Tile<64>>(a, stream) : dispatch<Tile<128>>(a, stream);
}

}  // namespace

size_t vidc_ring_attention_workspace(const VidcRingAttention* arguments) {
  int count = 0;
  if (ctas(*arguments, &count) != cudaSuccess) return 0;
  return arrival_bytes(*arguments) +
         part_bytes(*arguments) * static_cast<size_t>(vidc::StreamK::kSlots * count);
}

size_t vidc_ring_attention_zeroed(const VidcRingAttention* arguments) {
  return arrival_bytes(*arguments);
}

cudaError_t vidc_ring_attention(const VidcRingAttention* arguments, cudaStream_t stream) {
  if (!valid(*arguments)) return cudaErrorInvalidValue;
  return arguments->format == VIDC_RING_E4M3 ? dispatch<E4m3Tile>(*arguments, stream)
                                             : dispatch<Int8Tile>(*arguments, stream);
}
