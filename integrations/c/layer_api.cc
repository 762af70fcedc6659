// ems.h: loads of paged KV that go layer by layer.
#include <algorithm>

#include "integrations/c/ems.h"
#include "integrations/c/internal/kv_call.h"
#include "integrations/c/internal/run_call.h"

namespace ems::capi {
namespace {

Status Begin(ems_kv* kv, const ems_kv_blocks* blocks, const ems_call_options* options,
             ems_layer_load** load) {
  EMS_RETURN_IF_ERROR(NotNull(load, "load"));
  *load = nullptr;
  EMS_RETURN_IF_ERROR(CheckHandle(kv, "kv"));
  EMS_RETURN_IF_ERROR(NotNull(blocks, "blocks"));
  EMS_ASSIGN_OR_RETURN(
      const std::unique_ptr<KvCall> call,
      KvCall::Make(kv->kv, KvKind::kLoad, {.blocks = *blocks, .options = options}));
  *load = std::make_unique<ems_layer_load>(
              ems_layer_load{kv->core, kv->kv, std::move(*call).BeginLayers()})
              .release();
  return OkStatus();
}

Status WaitFor(const context::LayerLoad& load, uint32_t layer, Duration timeout, size_t* leading,
               uint8_t* missing) {
  EMS_ASSIGN_OR_RETURN(const context::LayerReady ready,
                       load.WaitLayer(layer, Deadline::After(timeout)));
  *leading = ready.leading_blocks;
  if (missing != nullptr) {
    std::fill_n(missing, load.blocks(), uint8_t{0});
    for (const size_t i : ready.missing) missing[i] = 1;
  }
  if (ready.missing.empty()) return OkStatus();
  return Error(StatusCode::kNotFound, "layer {}: {} of {} blocks are missing, the first is {}",
               layer, ready.missing.size(), load.blocks(), ready.missing.front());
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces
using ems::Status;

ems_status ems_kv_load_layers(ems_kv* kv, const ems_kv_blocks* blocks,
                              const ems_call_options* options, ems_layer_load** load) {
  return ReportOf([&] { return Begin(kv, blocks, options, load); });
}

ems_status ems_layer_load_wait(ems_layer_load* load, uint32_t layer, uint32_t timeout_ms,
                               size_t* leading, uint8_t* missing) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(leading, "leading"));
    *leading = 0;
    EMS_RETURN_IF_ERROR(CheckHandle(load, "load"));
    return WaitFor(load->load, layer, std::chrono::milliseconds(timeout_ms), leading, missing);
  });
}

size_t ems_layer_load_ready(const ems_layer_load* load) {
  // Its lock may be taken for ever in a child.
  if (load == nullptr || !load->core->made_here.here()) return 0;
  return load->load.ready_layers();
}

ems_status ems_layer_load_result(ems_layer_load* load, ems_status* codes, size_t* leading) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(leading, "leading"));
    *leading = 0;
    EMS_RETURN_IF_ERROR(CheckHandle(load, "load"));
    const Outcome outcome = TellLoad(load->load.Result(), codes);
    *leading = outcome.value;
    return outcome.status;
  });
}

ems_status ems_layer_load_cancel(ems_layer_load* load) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(CheckHandle(load, "load"));
    load->load.Cancel();
    return ems::OkStatus();
  });
}

void ems_layer_load_destroy(ems_layer_load* load) {
  if (load == nullptr || !load->core->made_here.here()) return;  // as Destroy
  AtBoundary([&] {
    load->load.Cancel();
    return EMS_OK;
  });
  Destroy(load);
}
