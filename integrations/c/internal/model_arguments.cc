#include "integrations/c/internal/model_arguments.h"

#include <algorithm>
#include <cstring>

#include "integrations/c/internal/arguments.h"

namespace ems::capi {
namespace {

using std::chrono::milliseconds;

constexpr size_t kFilesMax = 100'000;
constexpr uint32_t kPriorityMax = 1000;

std::string OrEmpty(const char* text) { return text == nullptr ? std::string() : text; }

Result<std::vector<std::string>> ToTexts(const char* const* texts, size_t count,
                                         std::string_view name) {
  std::vector<std::string> result;
  EMS_RETURN_IF_ERROR(InRange(count, 0, kFilesMax, fmt::format("the number of {}", name)));
  if (count > 0) EMS_RETURN_IF_ERROR(NotNull(texts, name));
  for (size_t i = 0; i < count; ++i) {
    EMS_RETURN_IF_ERROR(NotNull(texts[i], fmt::format("{}[{}]", name, i)));
    result.emplace_back(texts[i]);
  }
  return result;
}

template <size_t kSize>
void CopyText(std::string_view text, char (&out)[kSize]) {
  const size_t size = std::min(text.size(), kSize - 1);
  std::memcpy(out, text.data(), size);
  out[size] = '\0';
}

template <typename Unit>
uint64_t CountOf(Duration time) {
  return static_cast<uint64_t>(std::chrono::duration_cast<Unit>(time).count());
}

}  // namespace

ems_models_options DefaultModelsOptions() {
  ems_models_options options{};
  options.size = sizeof(options);
  options.controller = "127.0.0.1:7400";
  options.name_space = "models";
  options.connections_per_server_max = 8;
  options.async_threads = 2;
  options.async_queue_max = 64;
  options.start_timeout_ms = 5000;
  return options;
}

ems_model_add_options DefaultModelAddOptions() {
  ems_model_add_options options{};
  options.size = sizeof(options);
  options.block_bytes = model::kBlockBytesDefault;
  return options;
}

ems_model_load_options DefaultModelLoadOptions() {
  const model::LoadOptions load;
  ems_model_load_options options{};
  options.size = sizeof(options);
  options.threads = load.threads;
  options.pool_patience_ms = static_cast<uint32_t>(CountOf<milliseconds>(load.pool_patience));
  options.batch_bytes = load.batch_bytes;
  return options;
}

ems_model_tensors DefaultModelTensors() {
  ems_model_tensors tensors{};
  tensors.size = sizeof(tensors);
  return tensors;
}

Result<std::unique_ptr<ModelsCore>> MakeModels(const ems_models_options* given) {
  EMS_ASSIGN_OR_RETURN(const ems_models_options c,
                       ReadOptions(given, DefaultModelsOptions(), "ems_models_options"));
  EMS_RETURN_IF_ERROR(NotNull(c.controller, "controller"));
  EMS_RETURN_IF_ERROR(NotNull(c.name_space, "name_space"));
  EMS_RETURN_IF_ERROR(InRange(c.transport, 0, EMS_TRANSPORT_UNIX, "transport"));
  EMS_RETURN_IF_ERROR(InRange(c.connections_per_server_max, 1, 1024, "connections_per_server_max"));
  EMS_RETURN_IF_ERROR(InRange(c.async_threads, 1, 64, "async_threads"));
  EMS_RETURN_IF_ERROR(InRange(c.async_queue_max, 1, 4096, "async_queue_max"));
  EMS_RETURN_IF_ERROR(InRange(c.start_timeout_ms, 1, 60'000, "start_timeout_ms"));
  EMS_RETURN_IF_ERROR(InRange(c.reserved, 0, 0, "reserved"));
  model::ModelCacheOptions options;
  options.controller = c.controller;
  options.name_space = c.name_space;
  options.transport = static_cast<TransportChoice>(c.transport);
  options.connections_per_server_max = c.connections_per_server_max;
  options.source_credentials = {.access_key = OrEmpty(c.access_key),
                                .secret_key = OrEmpty(c.secret_key),
                                .session_token = OrEmpty(c.session_token),
                                .bearer_token = OrEmpty(c.bearer_token)};
  options.source_ca_file = OrEmpty(c.ca_file);
  options.start_timeout = milliseconds(c.start_timeout_ms);
  options.shm_token = OrEmpty(c.shm_token);
  return std::make_unique<ModelsCore>(std::move(options), c.async_threads, c.async_queue_max);
}

Result<model::ModelName> ToModelName(const char* name) {
  EMS_RETURN_IF_ERROR(NotNull(name, "name"));
  return model::ModelName::Parse(name);
}

Result<model::AddOptions> ToAddOptions(const ems_model_add_options* given) {
  EMS_ASSIGN_OR_RETURN(const ems_model_add_options c,
                       ReadOptions(given, DefaultModelAddOptions(), "ems_model_add_options"));
  model::AddOptions options;
  EMS_ASSIGN_OR_RETURN(options.files, ToTexts(c.files, c.file_count, "files"));
  EMS_ASSIGN_OR_RETURN(options.include, ToTexts(c.include, c.include_count, "include"));
  options.credentials = OrEmpty(c.credentials);
  options.block_bytes = c.block_bytes;
  options.bytes_per_s_max = c.bytes_per_s_max;
  EMS_RETURN_IF_ERROR(InRange(c.verify, 0, EMS_MODEL_VERIFY_NEVER, "verify"));
  options.verify = static_cast<model::SourceVerify>(c.verify);
  options.ignore_tags = c.ignore_etags != 0;
  return options;
}

Duration TimeoutOr(uint32_t timeout_ms, Duration otherwise) {
  return timeout_ms == 0 ? otherwise : Duration(milliseconds(timeout_ms));
}

bool LoadChoice::Wants(std::string_view path) const {
  return all || std::ranges::find(files, path) != files.end();
}

Result<LoadChoice> ToLoadChoice(const ems_model_load_options* given) {
  EMS_ASSIGN_OR_RETURN(const ems_model_load_options c,
                       ReadOptions(given, DefaultModelLoadOptions(), "ems_model_load_options"));
  constexpr uint32_t kFlags = EMS_MODEL_VERIFY_DIGESTS | EMS_MODEL_POOL_ONLY | EMS_MODEL_NO_SYNC;
  EMS_RETURN_IF_ERROR(InRange(c.flags, 0, kFlags, "flags"));
  EMS_RETURN_IF_ERROR(InRange(c.threads, 1, 64, "threads"));
  EMS_RETURN_IF_ERROR(InRange(c.priority, 0, kPriorityMax, "priority"));
  EMS_RETURN_IF_ERROR(InRange(c.reserved, 0, 0, "reserved"));
  EMS_RETURN_IF_ERROR(InRange(c.batch_bytes, 64 * kKiB, uint64_t{1} << 32, "batch_bytes"));
  LoadChoice choice;
  choice.options.threads = c.threads;
  choice.options.batch_bytes = c.batch_bytes;
  choice.options.verify_digests = (c.flags & EMS_MODEL_VERIFY_DIGESTS) != 0;
  choice.options.fallback_to_source = (c.flags & EMS_MODEL_POOL_ONLY) == 0;
  choice.options.pool_patience = milliseconds(c.pool_patience_ms);
  choice.options.priority = c.priority;
  choice.timeout = TimeoutOr(c.timeout_ms, std::chrono::minutes(10));
  choice.sync = (c.flags & EMS_MODEL_NO_SYNC) == 0;
  choice.all = c.files == nullptr && c.file_count == 0;
  EMS_ASSIGN_OR_RETURN(choice.files, ToTexts(c.files, c.file_count, "files"));
  choice.on_progress = c.on_progress;
  choice.user = c.user;
  return choice;
}

Result<ems_model_tensors> ToTensors(const ems_model_tensors* given) {
  EMS_RETURN_IF_ERROR(NotNull(given, "tensors"));
  EMS_ASSIGN_OR_RETURN(const ems_model_tensors c,
                       ReadOptions(given, DefaultModelTensors(), "ems_model_tensors"));
  if (c.on_tensor == nullptr) return Error(StatusCode::kInvalidArgument, "on_tensor is NULL");
  EMS_RETURN_IF_ERROR(InRange(c.in_file_order, 0, 1, "in_file_order"));
  EMS_RETURN_IF_ERROR(InRange(c.reserved, 0, 0, "reserved"));
  return c;
}

void Tell(const model::ModelInfo& info, ems_model_info* out) {
  *out = {};
  CopyText(info.name.model, out->model);
  CopyText(info.name.version, out->version);
  out->bytes = info.bytes;
  out->files = info.files;
  out->blocks = info.blocks;
  out->pinned = info.pinned ? 1 : 0;
  out->first_read = static_cast<uint32_t>(info.source.first_read);
  out->job_state = static_cast<uint32_t>(info.job.state);
  out->job_bytes_done = info.job.bytes_done;
  out->job_source_bytes = info.job.source_bytes;
  out->job_elapsed_ms = CountOf<milliseconds>(info.job.elapsed);
  out->job_code = static_cast<ems_status>(info.job.error.code());
  CopyText(Message(info.job.error), out->job_error);
}

void Tell(const model::PrefetchProgress& progress, ems_model_progress* out) {
  *out = {.bytes_done = progress.info.job.bytes_done,
          .bytes = progress.info.bytes,
          .bytes_per_s = static_cast<uint64_t>(progress.bytes_per_s),
          .left_ms = progress.time_left ? CountOf<milliseconds>(*progress.time_left) : UINT64_MAX};
}

void Tell(const model::LoadStats& stats, ems_model_stats* out) {
  *out = {};
  out->bytes = stats.bytes;
  out->dram_bytes = stats.dram_bytes;
  out->ssd_bytes = stats.ssd_bytes;
  out->source_bytes = stats.source_bytes;
  out->blocks = stats.blocks;
  out->jobs = stats.jobs;
  out->elapsed_us = CountOf<std::chrono::microseconds>(stats.elapsed);
  out->waiting_us = CountOf<std::chrono::microseconds>(stats.waiting);
  if (!stats.detour.ok()) CopyText(ToString(stats.detour), out->detour);
}

static_assert(static_cast<int>(model::FirstRead::kOnce) == EMS_MODEL_READ_ONCE &&
              static_cast<int>(model::FirstRead::kTwiceUnlessChecked) ==
                  EMS_MODEL_READ_TWICE_UNLESS_CHECKED &&
              static_cast<int>(model::FirstRead::kTwice) == EMS_MODEL_READ_TWICE);
static_assert(static_cast<int>(model::SourceVerify::kAuto) == EMS_MODEL_VERIFY_AUTO &&
              static_cast<int>(model::SourceVerify::kAlways) == EMS_MODEL_VERIFY_ALWAYS &&
              static_cast<int>(model::SourceVerify::kNever) == EMS_MODEL_VERIFY_NEVER);
static_assert(static_cast<int>(model::JobState::kNone) == EMS_MODEL_JOB_NONE &&
              static_cast<int>(model::JobState::kRunning) == EMS_MODEL_JOB_RUNNING &&
              static_cast<int>(model::JobState::kDone) == EMS_MODEL_JOB_DONE &&
              static_cast<int>(model::JobState::kFailed) == EMS_MODEL_JOB_FAILED &&
              static_cast<int>(model::JobState::kCancelled) == EMS_MODEL_JOB_CANCELLED);

}  // namespace ems::capi
