#include "tensorrt_report.h"

#include <cstdio>
#include <cstring>

namespace vidc {
namespace {

// Of fixed size: memory may be full when an error is reported.
thread_local char last[2048] = "";

}  // namespace

void report(const char* message) noexcept {
  std::strncpy(last, message, sizeof(last) - 1);
  std::fprintf(stderr, "%s\n", message);
}

}  // namespace vidc

// Returns the last error of a plugin in this thread as VidcError formats it; empty if none.
extern "C" __attribute__((visibility("default"))) const char* vidc_plugin_error() {
  return vidc::last;
}
