// Errors of plugins, reported without exceptions, which cannot pass through TensorRT: it is built
// with another compiler.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <exception>
#include <string>

namespace vidc {

// Writes a message to stderr and keeps it for vidc_plugin_error() of this thread.
//
// The logger of setLoggerFinder is not used: its method table differs between TensorRT 10 and 11,
// and one library serves both.
void report(const char* message) noexcept;

// Runs `body`; returns 0, or 1 after an exception, which is reported.
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
