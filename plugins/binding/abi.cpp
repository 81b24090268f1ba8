#include <cstdint>

// PLUGIN_ABI of vidc.plugins.abi as it was when this was built.
extern "C" __attribute__((visibility("default"))) int32_t vidc_plugin_abi() {
  return VIDC_PLUGIN_ABI;
}
