// The fused operators behind a C interface, their kernels on a CPU: tests/support/fused_on_cpu.py.

#include "operators.h"
#include "ring_attention.h"
#include "ring_attention_16bit.h"

// Attention is checked and not run: its kernels have simulations of their own.
cudaError_t vidc_ring_attention_portable(const VidcRingAttention*, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t vidc_ring_attention_16bit(const VidcRingAttention16Bit*, cudaStream_t) {
  return cudaSuccess;
}

namespace {

using namespace vidc;

// A tensor, or none where there is no dtype; on a CUDA device unless its number is negative.
struct Given {
  void* data;
  const char* dtype;
  const int64_t* sizes;
  const int64_t* strides;
  int32_t rank;
  int32_t device;
};

TensorView view(const char* name, const Given& given) {
  const std::string where = given.device < 0 ? "cpu" : "cuda:" + std::to_string(given.device);
  return {name, given.data, dtype_named(given.dtype), given.rank, given.sizes, given.strides,
          given.device, where};
}

struct Optional {
  Optional(const char* name, const Given& given) : is(given.dtype) {
    if (is) of = view(name, given);
  }
  const TensorView* get() const { return is ? &of : nullptr; }
  bool is;
  TensorView of{};
};

// What was refused, or null.
template <typename Body>
const char* saying(Body body) {
  static std::string said;
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    said = error.what();
    return said.c_str();
  }
}

QkvToRing qkv_to_ring(const Given* t, int64_t sink, double eps) {
  return {view("qkv", t[0]),       view("query_weight", t[1]), view("key_weight", t[2]),
          view("cos", t[3]),       view("sin", t[4]),          view("position", t[5]),
          view("key_cache", t[6]), view("value_cache", t[7]),  sink,
          static_cast<float>(eps)};
}

}  // namespace

// Each takes its tensors, then its numbers in the schema's order, then where its outputs go.
extern "C" {

void run_backwards(int last_thread_first) { fibers::backwards = last_thread_first != 0; }

const char* run_gelu_quantize(const Given* t, const char* dtype, void* const* outputs) {
  return saying([&] {
    const TensorView x = view("x", t[0]);
    const Optional scale("output_scale", t[1]), mean("output_mean", t[2]);
    const DType to = dtype_named(dtype);
    check_gelu_quantize(x, to, scale.get(), mean.get());
    gelu_quantize(x, to, scale.get(), mean.get(), outputs[0], nullptr);
  });
}

const char* run_qk_norm_rope_ring_write(const Given* t, int64_t sink, double eps,
                                        void* const* outputs) {
  return saying([&] {
    const QkvToRing given = qkv_to_ring(t, sink, eps);
    check_qk_norm_rope_ring_write(given);
    qk_norm_rope_ring_write(given, outputs[0], nullptr);
  });
}

const char* run_qk_norm_rope_ring_write_static(const Given* t, int64_t sink, double eps,
                                               int64_t value_transposed, int64_t quantize_query,
                                               void* const* outputs) {
  return saying([&] {
    const Optional mean("key_mean", t[10]);
    const QkvTo8BitRing given{qkv_to_ring(t, sink, eps), view("key_scale", t[8]),
                              view("value_scale", t[9]), mean.get(),
                              value_transposed != 0,     quantize_query != 0};
    check_qk_norm_rope_ring_write_8bit(given);
    qk_norm_rope_ring_write_8bit(given, outputs[0], outputs[1], nullptr);
  });
}

const char* run_norm_silu_winograd(const Given* t, int64_t tile, int64_t keep_sum,
                                   void* const* outputs) {
  return saying([&] {
    const TensorView m0 = view("m0", t[0]);
    const Optional m1("m1", t[1]), m2("m2", t[2]), m3("m3", t[3]), m4("m4", t[4]), m5("m5", t[5]),
        bias("bias", t[6]), residual("residual", t[7]);
    const WinogradFrames given{{&m0, m1.get(), m2.get(), m3.get(), m4.get(), m5.get()},
                               bias.get(), residual.get(), view("gamma", t[8]),
                               view("past", t[9]), tile, keep_sum != 0};
    check_norm_silu_winograd(given);
    norm_silu_winograd(given, outputs[0], outputs[1], outputs[2], nullptr);
  });
}

const char* run_group_norm_silu(const Given* t, int64_t groups, double eps, int64_t silu,
                                void* const* outputs) {
  return saying([&] {
    const Optional shift("shift", t[1]);
    const GroupNormSiluArguments given{view("x", t[0]),
                                       shift.get(),
                                       view("weight", t[2]),
                                       view("bias", t[3]),
                                       groups,
                                       static_cast<float>(eps),
                                       silu != 0};
    check_group_norm_silu(given);
    // Poison: what the kernels read of it they have to write before. NaN of every float.
    std::vector<unsigned char> workspace(group_norm_silu_workspace(given), 0xff);
    group_norm_silu(given, workspace.data(), outputs[0], nullptr);
  });
}

const char* run_sampler_step(const Given* t, void* const*) {
  return saying([&] {
    const Optional noise("noise", t[1]);
    const SamplerStepArguments given{
        view("velocity", t[0]), noise.get(),          view("guidance", t[2]), view("table", t[3]),
        view("progress", t[4]), view("latent", t[5]), view("sample", t[6]),   view("timestep", t[7])};
    check_sampler_step(given);
    sampler_step(given, nullptr);
  });
}

const char* run_temporal_attention(const Given* t, void* const* outputs) {
  return saying([&] {
    const TemporalAttentionArguments given{view("query", t[0]), view("key", t[1]),
                                           view("value", t[2])};
    check_temporal_attention(given);
    temporal_attention(given, outputs[0], nullptr);
  });
}

const char* run_ring_attention_16bit(const Given* t, void* const* outputs) {
  return saying([&] {
    const RingAttention16Bit given{view("query", t[0]), view("key_cache", t[1]),
                                   view("value_cache", t[2]), view("valid_length", t[3])};
    check_ring_attention_16bit(given);
    ring_attention_16bit(given, outputs[0], nullptr);
  });
}

const char* run_ring_attention_8bit(const Given* t, const char* dtype, void* const* outputs) {
  return saying([&] {
    const Optional output_scale("output_scale", t[8]);
    const RingAttention8Bit given{view("query", t[0]),       view("query_scale", t[1]),
                                  view("key_cache", t[2]),   view("value_cache", t[3]),
                                  view("key_scale", t[4]),   view("value_scale", t[5]),
                                  view("value_mean", t[6]),  view("valid_length", t[7]),
                                  output_scale.get()};
    const DType to = dtype_named(dtype);
    check_ring_attention_8bit(given, to);
    ring_attention_8bit(given, to, nullptr, outputs[0], nullptr);
  });
}

}  // extern "C"
