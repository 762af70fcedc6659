// ems.h: waits for and loads of models, now and later.
#include "integrations/c/ems.h"
#include "integrations/c/internal/arguments.h"
#include "integrations/c/internal/handles.h"
#include "integrations/c/internal/last_error.h"
#include "integrations/c/internal/model_call.h"

namespace ems::capi {
namespace {

using Made = Result<std::unique_ptr<ModelCall>>;

Made Make(ModelsCore* core, const WaitArguments& arguments) {
  return ModelCall::MakeWait(core, arguments);
}
Made Make(ModelsCore* core, const LoadArguments& arguments) {
  return ModelCall::MakeLoad(core, arguments);
}

// What is told is empty unless the call ends well.
void Clear(const WaitArguments& arguments) {
  if (arguments.info != nullptr) *arguments.info = {};
}
void Clear(const LoadArguments& arguments) {
  if (arguments.stats != nullptr) *arguments.stats = {};
}

template <typename Arguments>
ems_status Now(ems_models* models, const Arguments& arguments) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(CheckHandle(models, "models"));
    Clear(arguments);
    EMS_ASSIGN_OR_RETURN(const auto call, Make(models->core.get(), arguments));
    return call->Run(call->timeout()).status;
  });
}

template <typename Arguments>
ems_status Later(ems_models* models, ems_cq* queue, uint64_t tag, const Arguments& arguments) {
  return ReportOf([&]() -> Status {
    EMS_RETURN_IF_ERROR(CheckHandle(models, "models"));
    EMS_RETURN_IF_ERROR(CheckHandle(queue, "queue"));
    EMS_ASSIGN_OR_RETURN(auto call, Make(models->core.get(), arguments));
    Clear(arguments);
    const Duration timeout = call->timeout();
    ThreadPool* const threads = &models->core->pool;
    return queue->calls->Submit(
        tag, timeout, std::move(call),
        [threads](std::function<void()>&& work) { return threads->TrySubmit(std::move(work)); });
  });
}

}  // namespace
}  // namespace ems::capi

using namespace ems::capi;  // NOLINT(google-build-using-namespace): C has no namespaces

ems_status ems_model_load_options_init(ems_model_load_options* options, size_t size) {
  return ReportOf([&] {
    return InitOptions(options, size, DefaultModelLoadOptions(), "ems_model_load_options");
  });
}

ems_status ems_model_tensors_init(ems_model_tensors* tensors, size_t size) {
  return ReportOf(
      [&] { return InitOptions(tensors, size, DefaultModelTensors(), "ems_model_tensors"); });
}

ems_status ems_models_wait(ems_models* models, const char* name, uint32_t timeout_ms,
                           ems_model_on_progress on_progress, void* user, ems_model_info* info) {
  return Now(models, WaitArguments{name, timeout_ms, on_progress, user, info});
}

ems_status ems_models_wait_submit(ems_models* models, ems_cq* queue, uint64_t tag, const char* name,
                                  uint32_t timeout_ms, ems_model_on_progress on_progress,
                                  void* user, ems_model_info* info) {
  return Later(models, queue, tag, WaitArguments{name, timeout_ms, on_progress, user, info});
}

namespace ems::capi {
namespace {

LoadArguments Buffers(const char* name, const ems_model_buffer* buffers, size_t count,
                      const ems_model_load_options* options, ems_model_stats* stats) {
  return {.name = name,
          .into = LoadInto::kBuffers,
          .buffers = buffers,
          .buffer_count = count,
          .options = options,
          .stats = stats};
}

LoadArguments Rooms(const char* name, ems_model_room room, void* user,
                    const ems_model_load_options* options, ems_model_stats* stats) {
  return {.name = name,
          .into = LoadInto::kRooms,
          .room = room,
          .user = user,
          .options = options,
          .stats = stats};
}

LoadArguments Folder(const char* name, const char* folder, const ems_model_load_options* options,
                     ems_model_stats* stats) {
  return {.name = name,
          .into = LoadInto::kFolder,
          .folder = folder,
          .options = options,
          .stats = stats};
}

LoadArguments Tensors(const char* name, const ems_model_tensors* tensors,
                      const ems_model_load_options* options, ems_model_stats* stats) {
  return {.name = name,
          .into = LoadInto::kTensors,
          .tensors = tensors,
          .options = options,
          .stats = stats};
}

}  // namespace
}  // namespace ems::capi

ems_status ems_models_load_buffers(ems_models* models, const char* name,
                                   const ems_model_buffer* buffers, size_t count,
                                   const ems_model_load_options* options, ems_model_stats* stats) {
  return Now(models, Buffers(name, buffers, count, options, stats));
}

ems_status ems_models_load_buffers_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                          const char* name, const ems_model_buffer* buffers,
                                          size_t count, const ems_model_load_options* options,
                                          ems_model_stats* stats) {
  return Later(models, queue, tag, Buffers(name, buffers, count, options, stats));
}

ems_status ems_models_load_rooms(ems_models* models, const char* name, ems_model_room room,
                                 void* user, const ems_model_load_options* options,
                                 ems_model_stats* stats) {
  return Now(models, Rooms(name, room, user, options, stats));
}

ems_status ems_models_load_rooms_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                        const char* name, ems_model_room room, void* user,
                                        const ems_model_load_options* options,
                                        ems_model_stats* stats) {
  return Later(models, queue, tag, Rooms(name, room, user, options, stats));
}

ems_status ems_models_load_folder(ems_models* models, const char* name, const char* folder,
                                  const ems_model_load_options* options, ems_model_stats* stats) {
  return Now(models, Folder(name, folder, options, stats));
}

ems_status ems_models_load_folder_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                         const char* name, const char* folder,
                                         const ems_model_load_options* options,
                                         ems_model_stats* stats) {
  return Later(models, queue, tag, Folder(name, folder, options, stats));
}

ems_status ems_models_load_tensors(ems_models* models, const char* name,
                                   const ems_model_tensors* tensors,
                                   const ems_model_load_options* options, ems_model_stats* stats) {
  return Now(models, Tensors(name, tensors, options, stats));
}

ems_status ems_models_load_tensors_submit(ems_models* models, ems_cq* queue, uint64_t tag,
                                          const char* name, const ems_model_tensors* tensors,
                                          const ems_model_load_options* options,
                                          ems_model_stats* stats) {
  return Later(models, queue, tag, Tensors(name, tensors, options, stats));
}
