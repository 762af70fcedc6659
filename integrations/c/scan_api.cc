// ems.h: listing keys.
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "integrations/c/ems.h"
#include "integrations/c/internal/arguments.h"
#include "integrations/c/internal/handles.h"
#include "integrations/c/internal/last_error.h"
#include "mp_sdk/key_scan.h"

struct ems_scan {
  std::shared_ptr<ems::capi::ClientCore> core;
  ems::KeyScan scan;
  std::vector<ems::KeyInfo> page{};  // of which `taken` have been given
  size_t taken = 0;
  size_t told = 0;  // of the scan's failures
};

namespace ems::capi {
namespace {

uint64_t Milliseconds(const std::optional<Duration>& time) {
  if (!time) return EMS_UNKNOWN_MS;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(*time).count());
}

uint32_t TierOf(Tier tier) {
  if (tier == Tier::kDram) return EMS_TIER_DRAM;
  return tier == Tier::kSsd ? EMS_TIER_SSD : EMS_TIER_UNKNOWN;
}

Result<ems_scan*> Begin(ems_client* client, const void* prefix, size_t prefix_size,
                        const ems_call_options* options) {
  EMS_RETURN_IF_ERROR(CheckHandle(client, "client"));
  if (prefix_size > 0) EMS_RETURN_IF_ERROR(NotNull(prefix, "prefix"));
  EMS_ASSIGN_OR_RETURN(const CallChoice choice, ToCallChoice(options));
  const std::string_view text(static_cast<const char*>(prefix), prefix_size);
  EMS_ASSIGN_OR_RETURN(KeyScan scan, KeyScan::Begin(client->core->client.get(),
                                                    {.prefix = text, .timeout = choice.timeout()}));
  return std::make_unique<ems_scan>(ems_scan{.core = client->core, .scan = std::move(scan)})
      .release();
}

// Errors: kNotFound  that was all    others  why keys of a server are missing, once for each
Status Next(ems_scan* scan, ems_key_info* info) {
  while (scan->taken == scan->page.size()) {
    const auto& failures = scan->scan.failures();
    if (scan->told < failures.size()) {
      const KeyScan::Failure& failure = failures[scan->told++];
      const Status& why = failure.status;
      return Error(why.code() == StatusCode::kNotFound ? StatusCode::kUnavailable : why.code(),
                   "keys of {} are missing: {}", failure.server, Message(why));
    }
    if (scan->scan.done()) return Error(StatusCode::kNotFound, "there are no more keys");
    scan->page = scan->scan.Next();
    scan->taken = 0;
  }
  const KeyInfo& one = scan->page[scan->taken++];
  *info = {.key = one.key.data(),
           .key_size = one.key.size(),
           .size = one.bytes,
           .age_ms = Milliseconds(one.age),
           .idle_ms = Milliseconds(one.idle),
           .tier = TierOf(one.tier),
           .reserved = 0};
  return OkStatus();
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces
using ems::Status;

ems_status ems_scan_begin(ems_client* client, const void* prefix, size_t prefix_size,
                          ems_scan** scan, const ems_call_options* options) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(scan, "scan"));
    *scan = nullptr;
    EMS_ASSIGN_OR_RETURN(*scan, Begin(client, prefix, prefix_size, options));
    return ems::OkStatus();
  });
}

ems_status ems_scan_next(ems_scan* scan, ems_key_info* info) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(CheckHandle(scan, "scan"));
    EMS_RETURN_IF_ERROR(NotNull(info, "info"));
    *info = {};
    return Next(scan, info);
  });
}

void ems_scan_destroy(ems_scan* scan) { Destroy(scan); }
