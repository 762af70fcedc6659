// ems.h: versions of models, and the jobs that bring them into the pool.
#include <algorithm>
#include <cstring>

#include "integrations/c/ems.h"
#include "integrations/c/internal/arguments.h"
#include "integrations/c/internal/handles.h"
#include "integrations/c/internal/last_error.h"
#include "integrations/c/internal/model_arguments.h"
#include "integrations/c/internal/models_core.h"

namespace ems::capi {
namespace {

constexpr Duration kAskTimeout = std::chrono::seconds(10);
constexpr Duration kAddTimeout = std::chrono::seconds(60);

// A call about one version, or all (`name` is then not looked at): checked before `work` runs.
template <typename Work>
ems_status OnModels(ems_models* models, const Work& work) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(CheckHandle(models, "models"));
    return work(&models->core->cache);
  });
}

using InfoCall = Result<model::ModelInfo> (model::ModelCache::*)(const model::ModelName&, Deadline);

ems_status InfoBy(InfoCall call, ems_models* models, const char* name, uint32_t timeout_ms,
                  ems_model_info* info) {
  return OnModels(models, [&](model::ModelCache* cache) -> Status {
    EMS_ASSIGN_OR_RETURN(const model::ModelName wanted, ToModelName(name));
    EMS_ASSIGN_OR_RETURN(
        const model::ModelInfo found,
        (cache->*call)(wanted, Deadline::After(TimeoutOr(timeout_ms, kAskTimeout))));
    if (info != nullptr) Tell(found, info);
    return OkStatus();
  });
}

// As many of `items` as there is room for, and how many there are.
template <typename Items, typename Out, typename TellOne>
Status TellList(const Items& items, Out* out, size_t capacity, size_t* count,
                const TellOne& tell_one) {
  *count = items.size();
  if (capacity > 0) EMS_RETURN_IF_ERROR(NotNull(out, "room"));
  for (size_t i = 0; i < std::min(capacity, items.size()); ++i) tell_one(items[i], &out[i]);
  if (capacity >= items.size()) return OkStatus();
  return Error(StatusCode::kOutOfRange, "{} there are, but room for {}", items.size(), capacity);
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces
using ems::Deadline;
using ems::Status;
using ems::model::ModelCache;

ems_status ems_models_options_init(ems_models_options* options, size_t size) {
  return ReportOf(
      [&] { return InitOptions(options, size, DefaultModelsOptions(), "ems_models_options"); });
}

ems_status ems_model_add_options_init(ems_model_add_options* options, size_t size) {
  return ReportOf([&] {
    return InitOptions(options, size, DefaultModelAddOptions(), "ems_model_add_options");
  });
}

ems_status ems_models_create(const ems_models_options* options, ems_models** models) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(NotNull(models, "models"));
    *models = nullptr;
    EMS_ASSIGN_OR_RETURN(auto core, MakeModels(options));
    *models = std::make_unique<ems_models>(ems_models{std::move(core)}).release();
    return ems::OkStatus();
  });
}

void ems_models_destroy(ems_models* models) { Destroy(models); }

ems_status ems_models_add(ems_models* models, const char* name, const char* url,
                          const ems_model_add_options* options, uint32_t timeout_ms,
                          ems_model_info* info) {
  return OnModels(models, [&](ModelCache* cache) -> Status {
    EMS_ASSIGN_OR_RETURN(const ems::model::ModelName wanted, ToModelName(name));
    EMS_RETURN_IF_ERROR(NotNull(url, "url"));
    EMS_ASSIGN_OR_RETURN(const ems::model::AddOptions choice, ToAddOptions(options));
    EMS_ASSIGN_OR_RETURN(
        const ems::model::ModelInfo added,
        cache->Add(wanted, url, choice, Deadline::After(TimeoutOr(timeout_ms, kAddTimeout))));
    if (info != nullptr) Tell(added, info);
    return ems::OkStatus();
  });
}

ems_status ems_models_list(ems_models* models, uint32_t timeout_ms, ems_model_info* infos,
                           size_t capacity, size_t* count) {
  return OnModels(models, [&](ModelCache* cache) -> Status {
    EMS_RETURN_IF_ERROR(NotNull(count, "count"));
    *count = 0;
    EMS_ASSIGN_OR_RETURN(const auto list,
                         cache->List(Deadline::After(TimeoutOr(timeout_ms, kAskTimeout))));
    return TellList(
        list, infos, capacity, count,
        [](const ems::model::ModelInfo& info, ems_model_info* out) { Tell(info, out); });
  });
}

ems_status ems_models_files(ems_models* models, const char* name, uint32_t timeout_ms,
                            ems_model_file* files, size_t capacity, size_t* count) {
  return OnModels(models, [&](ModelCache* cache) -> Status {
    EMS_RETURN_IF_ERROR(NotNull(count, "count"));
    *count = 0;
    EMS_ASSIGN_OR_RETURN(const ems::model::ModelName wanted, ToModelName(name));
    EMS_ASSIGN_OR_RETURN(
        const ems::model::Manifest manifest,
        cache->GetManifest(wanted, Deadline::After(TimeoutOr(timeout_ms, kAskTimeout))));
    return TellList(manifest.files, files, capacity, count,
                    [](const ems::model::ManifestFile& file, ems_model_file* out) {
                      *out = {};
                      out->bytes = file.bytes;
                      std::memcpy(out->path, file.path.data(),
                                  std::min(file.path.size(), sizeof(out->path) - 1));
                    });
  });
}

ems_status ems_models_get(ems_models* models, const char* name, uint32_t timeout_ms,
                          ems_model_info* info) {
  return InfoBy(&ModelCache::Get, models, name, timeout_ms, info);
}

ems_status ems_models_cancel(ems_models* models, const char* name, uint32_t timeout_ms,
                             ems_model_info* info) {
  return InfoBy(&ModelCache::Cancel, models, name, timeout_ms, info);
}

ems_status ems_models_pin(ems_models* models, const char* name, uint32_t timeout_ms,
                          ems_model_info* info) {
  return InfoBy(&ModelCache::Pin, models, name, timeout_ms, info);
}

ems_status ems_models_unpin(ems_models* models, const char* name, uint32_t timeout_ms,
                            ems_model_info* info) {
  return InfoBy(&ModelCache::Unpin, models, name, timeout_ms, info);
}

ems_status ems_models_remove(ems_models* models, const char* name, uint32_t timeout_ms) {
  return OnModels(models, [&](ModelCache* cache) -> Status {
    EMS_ASSIGN_OR_RETURN(const ems::model::ModelName wanted, ToModelName(name));
    return cache->Remove(wanted, Deadline::After(TimeoutOr(timeout_ms, kAskTimeout)));
  });
}

ems_status ems_models_check(ems_models* models, const char* name, uint32_t timeout_ms,
                            ems_model_check* check) {
  return OnModels(models, [&](ModelCache* cache) -> Status {
    EMS_RETURN_IF_ERROR(NotNull(check, "check"));
    *check = {};
    EMS_ASSIGN_OR_RETURN(const ems::model::ModelName wanted, ToModelName(name));
    EMS_ASSIGN_OR_RETURN(const ems::model::CheckResult found,
                         cache->Check(wanted, Deadline::After(TimeoutOr(timeout_ms, kAskTimeout))));
    *check = {.dram_bytes = found.dram_bytes,
              .ssd_bytes = found.ssd_bytes,
              .absent_bytes = found.absent_bytes,
              .unreachable_bytes = found.unreachable_bytes,
              .dram_blocks = found.dram_blocks,
              .ssd_blocks = found.ssd_blocks,
              .absent_blocks = found.absent_blocks,
              .unreachable_blocks = found.unreachable_blocks};
    return ems::OkStatus();
  });
}

ems_status ems_models_prefetch(ems_models* models, const char* name, uint32_t priority,
                               uint32_t timeout_ms, ems_model_info* info) {
  return OnModels(models, [&](ModelCache* cache) -> Status {
    EMS_ASSIGN_OR_RETURN(const ems::model::ModelName wanted, ToModelName(name));
    EMS_RETURN_IF_ERROR(InRange(priority, 0, 1000, "priority"));
    EMS_ASSIGN_OR_RETURN(
        const ems::model::ModelInfo begun,
        cache->Prefetch(wanted, priority, Deadline::After(TimeoutOr(timeout_ms, kAskTimeout))));
    if (info != nullptr) Tell(begun, info);
    return ems::OkStatus();
  });
}

ems_status ems_models_progress(ems_models* models, const char* name, uint32_t timeout_ms,
                               ems_model_progress* progress) {
  return OnModels(models, [&](ModelCache* cache) -> Status {
    EMS_RETURN_IF_ERROR(NotNull(progress, "progress"));
    *progress = {};
    EMS_ASSIGN_OR_RETURN(const ems::model::ModelName wanted, ToModelName(name));
    EMS_ASSIGN_OR_RETURN(
        const ems::model::PrefetchProgress at,
        cache->Progress(wanted, Deadline::After(TimeoutOr(timeout_ms, kAskTimeout))));
    Tell(at, progress);
    return ems::OkStatus();
  });
}
