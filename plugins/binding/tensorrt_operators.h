// The table of operators for TensorRT: inputs, outputs, attributes, checks and launch of each.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "../cuda/arguments.h"
#include "tensorrt_attributes.h"

namespace vidc {

struct Input {
  const char* name;
  std::vector<DType> allowed;  // empty: the dtype of input `like`
  int like = -1;
};

// A size of an output, equal to the size of an axis of an input.
struct Axis {
  int input, axis;
};

struct Output {
  const char* name;
  DType dtype;  // DType::other: the dtype of input `like`
  int like;
  std::vector<Axis> shape;  // empty: the shape of input `like`
  int written = -1;         // the input that this output overwrites, or -1
};

using Views = std::vector<TensorView>;

struct Operator {
  const char* name;
  std::vector<Input> inputs;
  int optional_inputs;  // number of last inputs that may be left out
  std::vector<Attribute> attributes;
  // Refuses attributes that are invalid for any tensors; may be null.
  void (*check_attributes)(const Checks& checks, const Attributes& attributes);
  std::vector<Output> (*outputs)(const Attributes& attributes);
  void (*check)(const Views& inputs, const Attributes& attributes);
  void (*launch)(const Views& inputs, const Attributes& attributes, void* const* outputs,
                 void* workspace, cudaStream_t stream);
  // Returns the bytes of workspace of a launch; null if it needs none.
  int64_t (*workspace)(const Views& inputs, const Attributes& attributes) = nullptr;
};

const std::vector<Operator>& operators();

}  // namespace vidc
