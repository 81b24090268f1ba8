#include "tensorrt_report.h"

#include <cstdio>
#include <cstring>

namespace vidc {
namespace {

// Of a fixed size: there may be no memory left to say so in.
thread_local char last[2048] = "";

}  // namespace

void report(const char* message) noexcept {
  std::strncpy(last, message, sizeof(last) - 1);
  std::fprintf(stderr, "%s\n", message);
}

}  // namespace vidc

// What a plugin last reported in this thread, in the words of vidc.plugins.errors; else empty.
extern "C" __attribute__((visibility("default"))) const char* vidc_plugin_error() {
  return vidc::last;
}
