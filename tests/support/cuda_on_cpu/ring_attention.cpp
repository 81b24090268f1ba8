// The kernel of ring attention on a CPU, one block after another, behind its launcher's arguments.

#include "sm90_ring_attention.cuh"

namespace {

using namespace vidc::ring_attention;

template <typename Tile, bool kDump>
int launch(const VidcRingAttention& a, Parameters p) {
  constexpr int kHead = Tile::kHead;
  p.query_tiles = (a.queries + kQueries<Tile> - 1) / kQueries<Tile>;
  p.tiles = a.batch * a.heads * p.query_tiles;
  p.parts = static_cast<float*>(a.workspace) + (Tile::kGroups * p.tiles + 3) / 4 * 4;
  const auto* query = static_cast<const uint8_t*>(a.query);
  const auto* key = static_cast<const uint8_t*>(a.key);
  const auto* value = static_cast<const uint8_t*>(a.value);
  const CUtensorMap queries{query, {kHead, a.heads, a.queries, a.batch}, {kHead, 1, kQueries<Tile>, 1}};
  const CUtensorMap keys{key, {kHead, a.heads, a.slots, a.batch}, {kHead, 1, kKeys, 1}};
  const CUtensorMap values{value, {a.value_slots, kHead, a.heads, a.batch}, {kKeys, kHead, 1, 1}};
  p.logit_scale = static_cast<float>(1.4426950408889634 / std::sqrt(kHead));
  gridDim.x = static_cast<unsigned>(a.ctas);
  // Backwards, so that the first of a tile's parts comes last.
  for (int cta = a.ctas; cta-- > 0;) {
    blockIdx.x = static_cast<unsigned>(cta);
    std::memset(memory, 0x55, sizeof memory);
    std::fill(std::begin(vidc::ptx::named_barriers), std::end(vidc::ptx::named_barriers),
              fibers::Barrier());
    vidc::ptx::phase_barriers.clear();
    vidc::ptx::forget_products();
    if (!fibers::run(kThreads<Tile>, [&] { kernel<Tile, kDump>(p, queries, keys, values); })) {
      return 1;
    }
  }
  return 0;
}

template <typename Tile>
int dispatch(const VidcRingAttention& a, const Parameters& p) {
  return a.products == nullptr ? launch<Tile, false>(a, p) : launch<Tile, true>(a, p);
}

template <template <int> class Tile>
int dispatch(const VidcRingAttention& a, const Parameters& p) {
  return a.head_dim == 64 ? dispatch<Tile<64>>(a, p) : dispatch<Tile<128>>(a, p);
}

}  // namespace

extern "C" int simulate(const VidcRingAttention* arguments, int late_copies) {
  const VidcRingAttention& a = *arguments;
  vidc::ptx::late_copies = late_copies != 0;
  fibers::when_idle = vidc::ptx::copy_one;
  Parameters p;
  p.query_scale = a.query_scale;
  p.key_scale = a.key_scale;
  p.value_scale = a.value_scale;
  p.value_mean = a.value_mean;
  p.valid_length = a.valid_length;
  p.output = a.output;
  p.arrivals = static_cast<unsigned*>(a.workspace);
  p.products = a.products;
  p.queries = a.queries;
  p.slots = a.slots;
  p.heads = a.heads;
  p.output_type = a.output_type;
  p.output_scale = a.output_scale;
  return a.format == VIDC_RING_E4M3 ? dispatch<E4m3Tile>(a, p) : dispatch<Int8Tile>(a, p);
}
