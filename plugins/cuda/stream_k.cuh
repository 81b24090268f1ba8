// Stream-K: distribution of tiles of equal length over the persistent CTAs of a kernel.
//
// A tile is some queries of one head; its length is the number of key blocks. In whole waves, each
// CTA has one tile, so CTAs read the same keys at the same time, from the L2 cache. The remaining
// tiles are cut into equal shares, which run first: no CTA waits for a tile's last part at the end.
//
// Arithmetic is in 32 bits: length * ctas * ctas must be less than 2^31.

#pragma once

#ifdef __CUDACC__
#define VIDC_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define VIDC_HOST_DEVICE inline
#endif

namespace vidc {

// A run of one tile's key blocks, [begin, end).
struct Segment {
  int tile;
  int begin;
  int end;
  // Workspace slot of this part of a tile, or -1 for a whole tile.
  int slot;
  // The CTAs with the tile's parts, [first, last].
  int first;
  int last;
};

class StreamK {
 public:
  // With more parts, merging a tile would cost more than the parts save.
  static constexpr int kMaxParts = 16;
  // A CTA's share is shorter than a tile, so it touches at most two.
  static constexpr int kSlots = 2;

  StreamK() = default;

  VIDC_HOST_DEVICE StreamK(int tiles, int length, int ctas)
      : length_(length), ctas_(ctas), shared_tiles_(tiles % ctas), waves_(tiles / ctas) {
    // No share is empty: a tile's parts are those of neighboring CTAs.
    const int parts = length < kMaxParts ? length : kMaxParts;
    sharers_ = shared_tiles_ * parts < ctas ? shared_tiles_ * parts : ctas;
  }

  // Gets the `index`-th segment of a CTA; returns false if there is none.
  VIDC_HOST_DEVICE bool segment(int cta, int index, Segment& out) const {
    if (cta < sharers_) {
      const unsigned begin = share_begin(cta), end = share_begin(cta + 1);
      if (begin < end) {
        const unsigned first = begin / length_;
        const int parts = static_cast<int>((end - 1) / length_ - first) + 1;
        if (index < parts) {
          const unsigned origin = (first + index) * length_;
          out.tile = static_cast<int>(first) + index;
          out.begin = static_cast<int>(begin > origin ? begin - origin : 0);
          out.end = static_cast<int>(end - origin < length_ ? end - origin : length_);
          out.first = sharer(origin);
          out.last = sharer(origin + length_ - 1);
          out.slot = out.first == out.last ? -1 : cta * kSlots + index;
          return true;
        }
        index -= parts;
      }
    }
    out.tile = shared_tiles_ + index * ctas_ + cta;
    out.begin = 0;
    out.end = static_cast<int>(length_);
    out.slot = -1;
    out.first = out.last = cta;
    return index < waves_;
  }

  // Workspace slot of the part of a shared tile in `cta`.
  VIDC_HOST_DEVICE int slot(int cta, int tile) const {
    return cta * kSlots + (tile - static_cast<int>(share_begin(cta) / length_));
  }

 private:
  VIDC_HOST_DEVICE unsigned share_begin(int cta) const {
    return shared_tiles_ * length_ * cta / sharers_;
  }

  // The CTA with a key block, counted through the shared tiles: the largest whose share does not
  // begin after it.
  VIDC_HOST_DEVICE int sharer(unsigned block) const {
    return static_cast<int>(((block + 1) * sharers_ - 1) / (shared_tiles_ * length_));
  }

  unsigned length_;
  int ctas_;
  int shared_tiles_;
  int waves_;
  int sharers_;
};

}  // namespace vidc
