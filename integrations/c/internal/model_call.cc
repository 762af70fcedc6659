#include "integrations/c/internal/model_call.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "ems_model/file_target.h"
#include "ems_model/host_target.h"
#include "integrations/c/internal/arguments.h"

namespace ems::capi {
namespace {

using model::LoadStats;
using model::OpenModel;

constexpr size_t kBuffersMax = 10'000;

Status AnswerOf(ems_status code, std::string_view callback, std::string_view about) {
  if (code == EMS_OK) return OkStatus();
  const bool known = code > 0 && code <= EMS_UNAUTHENTICATED;
  return Error(known ? static_cast<StatusCode>(code) : StatusCode::kUnknown,
               "{} answered {} for {}", callback, known ? ems_status_name(code) : "another code",
               about);
}

// A load as it was asked for, copied.
struct Load {
  ModelsCore* core = nullptr;
  model::ModelName name;
  LoadInto into = LoadInto::kFolder;
  LoadChoice choice;
  std::map<std::string, MutableBytes, std::less<>> buffers;
  ems_model_room room = nullptr;
  void* user = nullptr;
  std::string folder;
  ems_model_tensors tensors{};
  ems_model_stats* stats = nullptr;

  Status CheckFiles(const OpenModel& model) const;
  Result<LoadStats> Run(Deadline deadline) const;
  Result<LoadStats> IntoMemory(OpenModel* model, Deadline deadline) const;
  Result<LoadStats> IntoFolder(OpenModel* model, Deadline deadline) const;
  Result<LoadStats> IntoTensors(OpenModel* model, Deadline deadline) const;
};

Status Load::CheckFiles(const OpenModel& model) const {
  const auto has = [&](const std::string& path) {
    return std::ranges::find(model.manifest().files, path, &model::ManifestFile::path) !=
           model.manifest().files.end();
  };
  const auto missing = [&](const std::string& path) {
    return Error(StatusCode::kNotFound, "{} has no file {}", model.info().name.Text(),
                 Printable(path));
  };
  for (const std::string& path : choice.files) {
    if (!has(path)) return missing(path);
  }
  for (const auto& [path, bytes] : buffers) {
    if (!has(path)) return missing(path);
    for (const model::ManifestFile& file : model.manifest().files) {
      if (file.path != path || file.bytes == bytes.size()) continue;
      return Error(StatusCode::kInvalidArgument, "room of {} bytes for {} of {}", bytes.size(),
                   Printable(path), file.bytes);
    }
  }
  return OkStatus();
}

Result<LoadStats> Load::Run(Deadline deadline) const {
  model::LoadOptions options = choice.options;
  options.stop = std::make_shared<StopFlag>();
  options.on_progress = [this, stop = options.stop.get()](const model::LoadProgress& at) {
    const ems_model_progress progress{at.bytes_done, at.bytes, 0, UINT64_MAX};
    const bool ended =
        choice.on_progress != nullptr && choice.on_progress(choice.user, &progress) != 0;
    if (ended || core->stop.IsSet()) stop->Set();
  };
  EMS_ASSIGN_OR_RETURN(const std::unique_ptr<OpenModel> opened,
                       core->cache.Open(name, options, deadline));
  EMS_RETURN_IF_ERROR(CheckFiles(*opened));
  switch (into) {
    case LoadInto::kBuffers:
    case LoadInto::kRooms:
      return IntoMemory(opened.get(), deadline);
    case LoadInto::kFolder:
      return IntoFolder(opened.get(), deadline);
    case LoadInto::kTensors:
      return IntoTensors(opened.get(), deadline);
  }
  return Error(StatusCode::kInternal, "no such load");
}

Result<LoadStats> Load::IntoMemory(OpenModel* model, Deadline deadline) const {
  model::HostTarget target(
      {.choose =
           [this](std::string_view path) {
             return into == LoadInto::kBuffers ? buffers.contains(path) : choice.Wants(path);
           },
       .room = [this](std::string_view path, uint64_t bytes) -> Result<MutableBytes> {
         if (into == LoadInto::kBuffers) return buffers.find(path)->second;
         const std::string text(path);
         void* memory = nullptr;
         EMS_RETURN_IF_ERROR(AnswerOf(room(user, text.c_str(), bytes, &memory), "room", text));
         EMS_RETURN_IF_ERROR(NotNull(memory, fmt::format("the room for {}", text)));
         return MutableBytes(static_cast<std::byte*>(memory), bytes);
       }});
  return model->Load(&target, deadline);
}

Result<LoadStats> Load::IntoFolder(OpenModel* model, Deadline deadline) const {
  model::FileTarget target({.folder = folder,
                            .choose = [this](std::string_view path) { return choice.Wants(path); },
                            .sync = choice.sync});
  return model->Load(&target, deadline);
}

ems_model_tensor Seen(const std::string& file, const model::TensorInfo& info,
                      const std::vector<uint64_t>& shape, void* data, uint64_t bytes) {
  // Names of types are texts of the library, which end with NUL.
  return {.file = file.c_str(),
          .name = info.name.c_str(),
          .dtype = model::TraitsOf(info.dtype).name.data(),
          .shape = shape.data(),
          .full_shape = info.shape.data(),
          .dimensions = info.shape.size(),
          .data = data,
          .bytes = bytes};
}

Result<LoadStats> Load::IntoTensors(OpenModel* model, Deadline deadline) const {
  Status refused;  // what `choose` answered
  model::TensorStream::Options options;
  options.order = tensors.in_file_order != 0 ? model::TensorOrder::kFile : model::TensorOrder::kAny;
  options.choose = [&](std::string_view path,
                       const model::TensorInfo& info) -> std::optional<model::SliceSpec> {
    if (!refused.ok() || !choice.Wants(path)) return std::nullopt;
    if (tensors.choose == nullptr) return model::SliceSpec{};
    const std::string file(path);
    const ems_model_tensor seen = Seen(file, info, info.shape, nullptr, info.bytes);
    ems_model_slice slice{};
    const ems_status code = tensors.choose(tensors.user, &seen, &slice);
    if (code == EMS_NOT_FOUND) return std::nullopt;
    refused = AnswerOf(code, "choose", info.name);
    if (refused.ok() && slice.axis == 0 && slice.rank == 0 && slice.ranks == 0)
      return model::SliceSpec{};
    return model::SliceSpec{.axis = slice.axis, .rank = slice.rank, .ranks = slice.ranks};
  };
  if (tensors.room != nullptr) {
    options.room = [&](std::string_view path, const model::TensorInfo& info,
                       const model::TensorSlice& slice) -> Result<MutableBytes> {
      EMS_RETURN_IF_ERROR(refused);
      if (slice.bytes == 0) return MutableBytes();
      const std::string file(path);
      const ems_model_tensor seen = Seen(file, info, slice.shape, nullptr, slice.bytes);
      void* memory = nullptr;
      EMS_RETURN_IF_ERROR(AnswerOf(tensors.room(tensors.user, &seen, &memory), "room", info.name));
      EMS_RETURN_IF_ERROR(NotNull(memory, fmt::format("the room for {}", info.name)));
      return MutableBytes(static_cast<std::byte*>(memory), slice.bytes);
    };
  }
  model::TensorStream stream(options, [&](const model::LoadedTensor& tensor) -> Status {
    EMS_RETURN_IF_ERROR(refused);
    const std::string file(tensor.file);
    const ems_model_tensor seen =
        Seen(file, *tensor.info, tensor.slice->shape, tensor.bytes.data(), tensor.bytes.size());
    return AnswerOf(tensors.on_tensor(tensors.user, &seen), "on_tensor", tensor.info->name);
  });
  Result<LoadStats> loaded = model->Load(&stream, deadline);
  EMS_RETURN_IF_ERROR(refused);
  return loaded;
}

Status TakeBuffers(const LoadArguments& arguments, Load* load) {
  EMS_RETURN_IF_ERROR(InRange(arguments.buffer_count, 1, kBuffersMax, "count"));
  EMS_RETURN_IF_ERROR(NotNull(arguments.buffers, "buffers"));
  for (size_t i = 0; i < arguments.buffer_count; ++i) {
    const ems_model_buffer& buffer = arguments.buffers[i];
    EMS_RETURN_IF_ERROR(NotNull(buffer.path, fmt::format("buffers[{}].path", i)));
    if (buffer.size > 0)
      EMS_RETURN_IF_ERROR(NotNull(buffer.data, fmt::format("buffers[{}].data", i)));
    const MutableBytes bytes(static_cast<std::byte*>(buffer.data), buffer.size);
    if (!load->buffers.emplace(buffer.path, bytes).second) {
      return Error(StatusCode::kInvalidArgument, "buffers[{}]: {} has one already", i,
                   Printable(buffer.path));
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<ModelCall>> ModelCall::MakeWait(ModelsCore* core,
                                                       const WaitArguments& arguments) {
  EMS_ASSIGN_OR_RETURN(model::ModelName name, ToModelName(arguments.name));
  return std::unique_ptr<ModelCall>(new ModelCall(
      TimeoutOr(arguments.timeout_ms, std::chrono::minutes(10)),
      [core, arguments, name = std::move(name)](Deadline deadline) -> Outcome {
        StopFlag stop;
        const auto waited = core->cache.WaitPrefetched(
            name, deadline,
            [&](const model::PrefetchProgress& at) {
              ems_model_progress progress;
              Tell(at, &progress);
              const bool ended = arguments.on_progress != nullptr &&
                                 arguments.on_progress(arguments.user, &progress) != 0;
              if (ended || core->stop.IsSet()) stop.Set();
            },
            &stop);
        if (waited.ok() && arguments.info != nullptr) Tell(waited->info, arguments.info);
        return {.status = waited.status()};
      }));
}

Result<std::unique_ptr<ModelCall>> ModelCall::MakeLoad(ModelsCore* core,
                                                       const LoadArguments& arguments) {
  auto load = std::make_shared<Load>();
  load->core = core;
  EMS_ASSIGN_OR_RETURN(load->name, ToModelName(arguments.name));
  EMS_ASSIGN_OR_RETURN(load->choice, ToLoadChoice(arguments.options));
  load->into = arguments.into;
  load->room = arguments.room;
  load->user = arguments.user;
  load->stats = arguments.stats;
  switch (arguments.into) {
    case LoadInto::kBuffers:
      if (!load->choice.all) {
        return Error(StatusCode::kInvalidArgument, "files: the buffers say which");
      }
      EMS_RETURN_IF_ERROR(TakeBuffers(arguments, load.get()));
      break;
    case LoadInto::kRooms:
      if (arguments.room == nullptr) return Error(StatusCode::kInvalidArgument, "room is NULL");
      break;
    case LoadInto::kFolder:
      EMS_RETURN_IF_ERROR(NotNull(arguments.folder, "folder"));
      load->folder = arguments.folder;
      if (load->folder.empty()) return Error(StatusCode::kInvalidArgument, "folder is empty");
      break;
    case LoadInto::kTensors: {
      EMS_ASSIGN_OR_RETURN(load->tensors, ToTensors(arguments.tensors));
      break;
    }
  }
  const Duration timeout = load->choice.timeout;
  return std::unique_ptr<ModelCall>(new ModelCall(timeout, [load](Deadline deadline) -> Outcome {
    if (load->core->stop.IsSet())
      return {.status = Error(StatusCode::kCancelled, "the models were given back")};
    const Result<LoadStats> stats = load->Run(deadline);
    if (!stats.ok()) return {.status = stats.status()};
    if (load->stats != nullptr) Tell(*stats, load->stats);
    return {.status = OkStatus(), .value = stats->bytes};
  }));
}

Outcome ModelCall::Run(Duration timeout) { return work_(Deadline::After(timeout)); }

}  // namespace ems::capi
