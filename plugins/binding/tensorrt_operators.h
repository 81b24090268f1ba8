// The operators as TensorRT sees them: what goes in and comes out, and what checks and launches.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "../cuda/arguments.h"
#include "tensorrt_attributes.h"

namespace vidc {

struct Input {
  const char* name;
  std::vector<DType> allowed;  // empty where it has the dtype of another input
  int like = -1;
};

// A size of an output: that of an axis of an input.
struct Axis {
  int input, axis;
};

struct Output {
  const char* name;
  DType dtype;  // other where it has the dtype of an input
  int like;
  std::vector<Axis> shape;  // empty for the shape of that input
  int written = -1;         // the input that is written, and that this output is
};

using Views = std::vector<TensorView>;

struct Operator {
  const char* name;
  std::vector<Input> inputs;
  int optional_inputs;  // how many at the end may be left out
  std::vector<Attribute> attributes;
  // Refuses attributes that no tensors would make right; null where there are none.
  void (*check_attributes)(const Checks& checks, const Attributes& attributes);
  std::vector<Output> (*outputs)(const Attributes& attributes);
  void (*check)(const Views& inputs, const Attributes& attributes);
  void (*launch)(const Views& inputs, const Attributes& attributes, void* const* outputs,
                 void* workspace, cudaStream_t stream);
  // Bytes of memory that a launch needs besides; null where it needs none.
  int64_t (*workspace)(const Views& inputs, const Attributes& attributes) = nullptr;
};

const std::vector<Operator>& operators();

}  // namespace vidc
