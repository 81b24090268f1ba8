// What a plugin could not do, told without throwing: TensorRT is compiled by another compiler.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <exception>
#include <string>

namespace vidc {

// To stderr, and to whoever asks vidc_plugin_error() in this thread.
//
// Not to the logger of setLoggerFinder: where its method lies differs between TensorRT 10 and 11,
// and one library is to serve both.
void report(const char* message) noexcept;

// Runs what may throw; zero, or one after what was thrown has been reported.
template <typename Body>
int32_t reported(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    report(error.what());
  }
  return 1;
}

}  // namespace vidc
