// Table entries of qk_norm_rope_ring_write and its 8-bit variant.
#pragma once

#include "tensorrt_operators.h"

namespace vidc {

Operator qk_norm_rope_ring_write_operator();
Operator qk_norm_rope_ring_write_static_operator();

}  // namespace vidc
