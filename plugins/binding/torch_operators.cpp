// CUDA implementations of the torch operators; Python defines their schemas beside the references.

#include <torch/csrc/stable/library.h>

#include "../cuda/operators.h"
#include "tensors.h"

namespace vidc {
namespace {

Tensor allocate(const Tensor& like, std::initializer_list<int64_t> sizes, ScalarType type) {
  return torch::stable::new_empty(like, {sizes.begin(), sizes.size()}, type);
}

// View of an optional argument.
class Optional {
 public:
  Optional(const char* name, const std::optional<Tensor>& tensor) {
    if (tensor) view_ = vidc::view(name, *tensor);
  }
  const TensorView* get() const { return view_ ? &*view_ : nullptr; }

 private:
  std::optional<TensorView> view_;
};

Tensor gelu_quantize_cuda(const Tensor& x, const std::string& dtype,
                          const std::optional<Tensor>& output_scale,
                          const std::optional<Tensor>& output_mean) {
  const TensorView of_x = view("x", x);
  const Optional of_output("output_scale", output_scale), of_mean("output_mean", output_mean);
  const DType to = dtype_named(dtype);
  check_gelu_quantize(of_x, to, of_output.get(), of_mean.get());
  const DeviceGuard guard(of_x.device);
  Tensor output = allocate(x, {x.size(0), x.size(1), x.size(2)}, scalar_type_of(to));
  gelu_quantize(of_x, to, of_output.get(), of_mean.get(), output.data_ptr(), current_stream(of_x));
  return output;
}

QkvToRing views(const Tensor& qkv, const Tensor& query_weight, const Tensor& key_weight,
                const Tensor& cos, const Tensor& sin, const Tensor& position,
                const Tensor& key_cache, const Tensor& value_cache, int64_t sink, double eps) {
  return {view("qkv", qkv),
          view("query_weight", query_weight),
          view("key_weight", key_weight),
          view("cos", cos),
          view("sin", sin),
          view("position", position),
          view("key_cache", key_cache),
          view("value_cache", value_cache),
          sink,
          static_cast<float>(eps)};
}

Tensor qk_norm_rope_ring_write_cuda(const Tensor& qkv, const Tensor& query_weight,
                                    const Tensor& key_weight, const Tensor& cos, const Tensor& sin,
                                    const Tensor& position, const Tensor& key_cache,
                                    const Tensor& value_cache, int64_t sink, double eps) {
  const QkvToRing given =
      views(qkv, query_weight, key_weight, cos, sin, position, key_cache, value_cache, sink, eps);
  check_qk_norm_rope_ring_write(given);
  const DeviceGuard guard(given.qkv.device);
  Tensor query = allocate(qkv, {qkv.size(0), qkv.size(1), key_cache.size(2), key_cache.size(3)},
                          qkv.scalar_type());
  qk_norm_rope_ring_write(given, query.data_ptr(), current_stream(given.qkv));
  return query;
}

std::tuple<Tensor, Tensor> qk_norm_rope_ring_write_8bit_cuda(
    const Tensor& qkv, const Tensor& query_weight, const Tensor& key_weight, const Tensor& cos,
    const Tensor& sin, const Tensor& position, const Tensor& key_cache, const Tensor& value_cache,
    const Tensor& key_scale, const Tensor& value_scale, const std::optional<Tensor>& key_mean,
    int64_t sink, double eps, bool value_transposed, bool quantize_query) {
  const Optional mean("key_mean", key_mean);
  const QkvTo8BitRing given{
      views(qkv, query_weight, key_weight, cos, sin, position, key_cache, value_cache, sink, eps),
      view("key_scale", key_scale),
      view("value_scale", value_scale),
      mean.get(),
      value_transposed,
      quantize_query};
  check_qk_norm_rope_ring_write_8bit(given);
  const DeviceGuard guard(given.qkv.qkv.device);
  const int64_t batch = qkv.size(0), tokens = qkv.size(1), heads = key_cache.size(2);
  Tensor query = allocate(qkv, {batch, tokens, heads, key_cache.size(3)},
                          quantize_query ? key_cache.scalar_type() : qkv.scalar_type());
  Tensor query_scale =
      allocate(qkv, {quantize_query ? batch : 0, heads, tokens}, ScalarType::Float);
  qk_norm_rope_ring_write_8bit(given, query.data_ptr(), query_scale.data_ptr(),
                               current_stream(given.qkv.qkv));
  return {query, query_scale};
}

std::tuple<Tensor, Tensor, Tensor> norm_silu_winograd_cuda(
    const Tensor& m0, const std::optional<Tensor>& m1, const std::optional<Tensor>& m2,
    const std::optional<Tensor>& m3, const std::optional<Tensor>& m4,
    const std::optional<Tensor>& m5, const std::optional<Tensor>& bias,
    const std::optional<Tensor>& residual, const Tensor& gamma, const Tensor& past, int64_t tile,
    bool keep_sum) {
  const TensorView of_m0 = view("m0", m0);
  const Optional of_m1("m1", m1), of_m2("m2", m2), of_m3("m3", m3), of_m4("m4", m4),
      of_m5("m5", m5), of_bias("bias", bias), of_residual("residual", residual);
  const WinogradFrames given{
      {&of_m0, of_m1.get(), of_m2.get(), of_m3.get(), of_m4.get(), of_m5.get()},
      of_bias.get(),
      of_residual.get(),
      view("gamma", gamma),
      view("past", past),
      tile,
      keep_sum};
  const int64_t tiles = check_norm_silu_winograd(given);
  const DeviceGuard guard(of_m0.device);
  const int64_t batch = past.size(0), height = past.size(2), width = past.size(3),
                channels = past.size(4);
  const ScalarType type = m0.scalar_type();
  Tensor inputs = allocate(m0, {tile + 2, batch * tiles, height, width, channels}, type);
  Tensor last = allocate(m0, {batch, 2, height, width, channels}, type);
  Tensor sum = keep_sum ? allocate(m0, {batch, tile * tiles, height, width, channels}, type)
                        : allocate(m0, {0}, type);
  norm_silu_winograd(given, inputs.data_ptr(), last.data_ptr(), sum.data_ptr(),
                     current_stream(of_m0));
  return {inputs, last, sum};
}

Tensor group_norm_silu_cuda(const Tensor& x, const std::optional<Tensor>& shift,
                            const Tensor& weight, const Tensor& bias, int64_t groups, double eps,
                            bool silu) {
  const Optional of_shift("shift", shift);
  const GroupNormSiluArguments given{view("x", x),
                                     of_shift.get(),
                                     view("weight", weight),
                                     view("bias", bias),
                                     groups,
                                     static_cast<float>(eps),
                                     silu};
  check_group_norm_silu(given);
  const DeviceGuard guard(given.x.device);
  Tensor output = allocate(x, {x.size(0), x.size(1), x.size(2)}, x.scalar_type());
  Tensor workspace = allocate(x, {group_norm_silu_workspace(given)}, ScalarType::Char);
  group_norm_silu(given, workspace.data_ptr(), output.data_ptr(), current_stream(given.x));
  return output;
}

void sampler_step_cuda(const Tensor& velocity, const std::optional<Tensor>& noise,
                       const Tensor& guidance, const Tensor& table, const Tensor& progress,
                       const Tensor& latent, const Tensor& sample, const Tensor& timestep) {
  const Optional of_noise("noise", noise);
  const SamplerStepArguments given{view("velocity", velocity), of_noise.get(),
                                   view("guidance", guidance), view("table", table),
                                   view("progress", progress), view("latent", latent),
                                   view("sample", sample),     view("timestep", timestep)};
  check_sampler_step(given);
  const DeviceGuard guard(given.velocity.device);
  sampler_step(given, current_stream(given.velocity));
}

Tensor ring_attention_16bit_cuda(const Tensor& query, const Tensor& key_cache,
                                 const Tensor& value_cache, const Tensor& valid_length) {
  const RingAttention16Bit given{view("query", query), view("key_cache", key_cache),
                                 view("value_cache", value_cache),
                                 view("valid_length", valid_length)};
  check_ring_attention_16bit(given);
  const DeviceGuard guard(given.query.device);
  Tensor output = allocate(query, {query.size(0), query.size(1), query.size(2), query.size(3)},
                           query.scalar_type());
  ring_attention_16bit(given, output.data_ptr(), current_stream(given.query));
  return output;
}

Tensor ring_attention_8bit_cuda(const Tensor& query, const Tensor& query_scale,
                                const Tensor& key_cache, const Tensor& value_cache,
                                const Tensor& key_scale, const Tensor& value_scale,
                                const Tensor& value_mean, const Tensor& valid_length,
                                const std::string& dtype,
                                const std::optional<Tensor>& output_scale) {
  const Optional of_output("output_scale", output_scale);
  const RingAttention8Bit given{view("query", query),
                                view("query_scale", query_scale),
                                view("key_cache", key_cache),
                                view("value_cache", value_cache),
                                view("key_scale", key_scale),
                                view("value_scale", value_scale),
                                view("value_mean", value_mean),
                                view("valid_length", valid_length),
                                of_output.get()};
  const DType to = dtype_named(dtype);
  check_ring_attention_8bit(given, to);
  const DeviceGuard guard(given.query.device);
  Tensor output = allocate(query, {query.size(0), query.size(1), query.size(2), query.size(3)},
                           scalar_type_of(to));
  // From torch's allocator, so a CUDA graph that captures the launch owns it.
  Tensor workspace =
      allocate(query, {ring_attention_8bit_workspace(given, to)}, ScalarType::Char);
  ring_attention_8bit(given, to, workspace.data_ptr(), output.data_ptr(),
                      current_stream(given.query));
  return output;
}

Tensor temporal_attention_cuda(const Tensor& query, const Tensor& key, const Tensor& value) {
  const TemporalAttentionArguments given{view("query", query), view("key", key),
                                         view("value", value)};
  check_temporal_attention(given);
  const DeviceGuard guard(given.query.device);
  Tensor output = allocate(
      query, {query.size(0), query.size(1), query.size(2), query.size(3), query.size(4)},
      query.scalar_type());
  temporal_attention(given, output.data_ptr(), current_stream(given.query));
  return output;
}

void register_on_cuda(torch::stable::detail::StableLibrary& library) {
  library.impl("gelu_quantize", TORCH_BOX(&gelu_quantize_cuda));
  library.impl("group_norm_silu", TORCH_BOX(&group_norm_silu_cuda));
  library.impl("norm_silu_winograd", TORCH_BOX(&norm_silu_winograd_cuda));
  library.impl("qk_norm_rope_ring_write", TORCH_BOX(&qk_norm_rope_ring_write_cuda));
  library.impl("qk_norm_rope_ring_write_static", TORCH_BOX(&qk_norm_rope_ring_write_8bit_cuda));
  library.impl("ring_attention_16bit", TORCH_BOX(&ring_attention_16bit_cuda));
  library.impl("ring_attention_8bit", TORCH_BOX(&ring_attention_8bit_cuda));
  library.impl("temporal_attention", TORCH_BOX(&temporal_attention_cuda));
  library.impl("sampler_step", TORCH_BOX(&sampler_step_cuda));
}

}  // namespace
}  // namespace vidc

// Registers the operators. STABLE_TORCH_LIBRARY_IMPL would do so when the library is opened. But
// vidc opens a library to read its ABI, and must not register operators of another ABI.
extern "C" __attribute__((visibility("default"))) void vidc_register_torch_operators() {
  using torch::stable::detail::StableLibrary;
  static const torch::stable::detail::StableTorchLibraryInit registration(
      StableLibrary::Kind::IMPL, &vidc::register_on_cuda, "vidc", "CUDA", __FILE__, __LINE__);
}
