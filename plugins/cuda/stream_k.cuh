// How the persistent blocks of a kernel share work that comes in tiles of equal length.
//
// A tile is some queries of one head, its length the number of key blocks. Whole waves of tiles go
// one tile to a CTA at a time: their CTAs walk the same keys side by side, out of the L2 cache. The
// tiles that are left over are laid end to end and cut into equal shares, which come first, so that
// nobody waits for a tile's last part at the end.
//
// All arithmetic is in 32 bits: length * ctas * ctas has to be less than 2^31.

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
  // Where the CTA keeps this part of a tile, or -1 for a whole one.
  int slot;
  // The CTAs that hold the tile's parts, [first, last].
  int first;
  int last;
};

class StreamK {
 public:
  // More parts would make putting one tile together slower than computing it in fewer.
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

  // The `index`-th segment of a CTA; false when there are no more.
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

  // Where `cta` keeps its part of a shared tile.
  VIDC_HOST_DEVICE int slot(int cta, int tile) const {
    return cta * kSlots + (tile - static_cast<int>(share_begin(cta) / length_));
  }

 private:
  VIDC_HOST_DEVICE unsigned share_begin(int cta) const {
    return shared_tiles_ * length_ * cta / sharers_;
  }

  // Who holds a key block, counted through the shared tiles: the largest CTA whose share does not
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
