#include <cstdint>

// Returns PLUGIN_ABI of vidc.plugins.abi at build time.
extern "C" __attribute__((visibility("default"))) int32_t vidc_plugin_abi() {
  return VIDC_PLUGIN_ABI;
}
