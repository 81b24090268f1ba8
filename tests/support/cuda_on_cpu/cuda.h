#pragma once

#include "cuda_runtime_api.h"

// A tensor of bytes with four dimensions, innermost first, and what a copy takes of it.
struct CUtensorMap {
  const uint8_t* address;
  int64_t sizes[4];
  int64_t box[4];
};
