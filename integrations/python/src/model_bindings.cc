#include "integrations/python/src/model_bindings.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/guarded.h"
#include "ems_model/file_target.h"
#include "ems_model/host_target.h"
#include "ems_model/model_cache.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"
#include "integrations/python/src/model_job.h"
#include "integrations/python/src/model_options.h"

namespace ems::python {

namespace py = pybind11;

using model::ModelCache;
using model::ModelName;

ModelName NameOf(const Text& model, const Text& version) {
  if (!version.text.empty()) return {.model = model.text, .version = version.text};
  return ValueOrRaise(ModelName::Parse(model));
}

Deadline DeadlineOf(const py::object& timeout) {
  return Deadline::After(DurationOf(timeout, Deadline::kMost));
}

namespace {

using model::LoadOptions;
using model::LoadStats;
using model::OpenModel;

double Seconds(Duration time) {
  return std::chrono::duration_cast<std::chrono::duration<double>>(time).count();
}

py::dict DictOf(const model::JobInfo& job) {
  py::dict dict;
  dict["number"] = job.number;
  dict["state"] = std::string(model::JobStateName(job.state));
  dict["priority"] = job.priority;
  dict["error"] = job.error.ok() ? py::none() : ErrorOf(job.error);
  dict["bytes_done"] = job.bytes_done;
  dict["source_bytes"] = job.source_bytes;
  dict["promoted_bytes"] = job.promoted_bytes;
  dict["shared_bytes"] = job.shared_bytes;
  dict["elapsed"] = Seconds(job.elapsed);
  return dict;
}

py::dict DictOf(const model::ModelInfo& info) {
  py::dict dict;
  dict["model"] = info.name.model;
  dict["version"] = info.name.version;
  dict["namespace"] = info.name_space;
  dict["source"] = info.source.url;
  dict["first_read"] = std::string(model::FirstReadName(info.source.first_read));
  dict["bytes"] = info.bytes;
  dict["files"] = info.files;
  dict["blocks"] = info.blocks;
  dict["blocks_known"] = info.blocks_known;
  dict["pinned"] = info.pinned;
  dict["age"] = Seconds(info.age);
  dict["unused"] = Seconds(info.unused);
  dict["job"] = DictOf(info.job);
  return dict;
}

// Calls `ask` on the cache without the GIL; raises what went wrong.
template <typename Ask>
auto Call(const PyModels& self, const Ask& ask) {
  const auto cache = self.Use();
  auto answer = WithoutGil([&] { return ask(*cache); });
  return ValueOrRaise(std::move(answer));
}

// Of one version.
template <auto Method>
auto AskOf(const PyModels& self, const Text& model, const Text& version,
           const py::object& timeout) {
  const ModelName name = NameOf(model, version);
  const Deadline deadline = DeadlineOf(timeout);
  return Call(self, [&](ModelCache& cache) { return (cache.*Method)(name, deadline); });
}

LoadOptions With(LoadOptions options, JobBoard* board) {
  options.stop = board->stop;
  options.on_progress = [board](const model::LoadProgress& at) {
    board->Progress(at.bytes_done, at.bytes);
  };
  return options;
}

std::unique_ptr<PyModels> Make(const Text& controller, const Text& name_space,
                               const std::string& transport, uint32_t connections_per_server,
                               double start_timeout, const py::dict& credentials,
                               const Text& ca_file, const Text& shm_token) {
  model::ModelCacheOptions options;
  options.controller = controller.text;
  options.name_space = name_space.text;
  if (transport == "tcp")
    options.transport = TransportChoice::kTcp;
  else if (transport == "unix")
    options.transport = TransportChoice::kUnix;
  else if (transport != "auto")
    Refuse(PyExc_ValueError,
           fmt::format("transport is \"{}\"; it may be auto, tcp, unix", transport));
  if (connections_per_server < 1 || connections_per_server > 1024)
    Refuse(PyExc_ValueError, "connections_per_server is 1 to 1024");
  options.connections_per_server_max = connections_per_server;
  options.start_timeout = DurationOf(py::float_(start_timeout), options.start_timeout);
  options.source_ca_file = ca_file.text;
  options.shm_token = shm_token.text;
  for (const auto& [key, value] : credentials) {
    const std::string name = TextOf(key, "the name of a credential");
    const std::string secret = TextOf(value, "a credential");
    if (name == "access_key")
      options.source_credentials.access_key = secret;
    else if (name == "secret_key")
      options.source_credentials.secret_key = secret;
    else if (name == "session_token")
      options.source_credentials.session_token = secret;
    else if (name == "bearer_token")
      options.source_credentials.bearer_token = secret;
    else
      Refuse(PyExc_TypeError, fmt::format("no credential is called {}", name));
  }
  const GilRelease free;
  return std::make_unique<PyModels>(std::make_shared<ModelCache>(std::move(options)));
}

// The job, and a function that gives the warnings of one that has ended.
py::tuple Add(const PyModels& self, const Text& model, const Text& version, const Text& url,
              const py::iterable& files, const py::iterable& include, const Text& credentials,
              const py::object& block_bytes, uint64_t bytes_per_s_max, const py::object& verify,
              bool ignore_etags, const py::object& timeout) {
  model::AddOptions options;
  options.files = TextsOf(files, "a file");
  options.include = TextsOf(include, "a pattern");
  options.credentials = credentials.text;
  options.bytes_per_s_max = bytes_per_s_max;
  options.verify = SourceVerifyOf(verify);
  const auto warnings = std::make_shared<Guarded<std::vector<std::string>>>();
  options.on_warning = [warnings](const std::string& text) {
    auto locked = warnings->Lock();
    locked->push_back(text);
  };
  options.ignore_tags = ignore_etags;
  if (!block_bytes.is_none()) options.block_bytes = CountOf(block_bytes, "block_bytes", UINT32_MAX);
  auto job = std::make_unique<PyModelJob>(
      [cache = self.Use(), name = NameOf(model, version), url = url.text, options,
       deadline = DeadlineOf(timeout)](JobBoard*) -> Result<LoadStats> {
        EMS_RETURN_IF_ERROR(cache->Add(name, url, options, deadline).status());
        return LoadStats{};
      },
      nullptr);
  return py::make_tuple(py::cast(std::move(job)), py::cpp_function([warnings] {
                          auto locked = warnings->Lock();
                          return *locked;
                        }));
}

py::dict Check(const PyModels& self, const Text& model, const Text& version,
               const py::object& timeout) {
  const model::CheckResult check = AskOf<&ModelCache::Check>(self, model, version, timeout);
  py::dict dict;
  dict["info"] = DictOf(check.info);
  dict["dram_bytes"] = check.dram_bytes;
  dict["ssd_bytes"] = check.ssd_bytes;
  dict["absent_bytes"] = check.absent_bytes;
  dict["unreachable_bytes"] = check.unreachable_bytes;
  dict["dram_blocks"] = check.dram_blocks;
  dict["ssd_blocks"] = check.ssd_blocks;
  dict["absent_blocks"] = check.absent_blocks;
  dict["unreachable_blocks"] = check.unreachable_blocks;
  return dict;
}

py::list Files(const PyModels& self, const Text& model, const Text& version,
               const py::object& timeout) {
  const model::Manifest manifest = AskOf<&ModelCache::GetManifest>(self, model, version, timeout);
  py::list list;
  for (const model::ManifestFile& file : manifest.files)
    list.append(py::make_tuple(file.path, file.bytes));
  return list;
}

py::dict ProgressOf(const PyModels& self, const Text& model, const Text& version,
                    const py::object& timeout) {
  const model::PrefetchProgress progress =
      AskOf<&ModelCache::Progress>(self, model, version, timeout);
  py::dict dict;
  dict["info"] = DictOf(progress.info);
  dict["bytes_per_s"] = progress.bytes_per_s;
  dict["time_left"] = progress.time_left ? py::object(py::float_(Seconds(*progress.time_left)))
                                         : py::object(py::none());
  return dict;
}

std::unique_ptr<PyModelJob> WaitPrefetched(const PyModels& self, const Text& model,
                                           const Text& version, const py::object& timeout) {
  return std::make_unique<PyModelJob>(
      [cache = self.Use(), name = NameOf(model, version),
       deadline = DeadlineOf(timeout)](JobBoard* board) -> Result<LoadStats> {
        EMS_RETURN_IF_ERROR(cache
                                ->WaitPrefetched(
                                    name, deadline,
                                    [board](const model::PrefetchProgress& at) {
                                      board->Progress(at.info.job.bytes_done, at.info.bytes);
                                    },
                                    board->stop.get())
                                .status());
        return LoadStats{};
      },
      nullptr);
}

Status CheckFiles(const OpenModel& model, const std::vector<std::string>& files) {
  for (const std::string& wanted : files) {
    if (std::ranges::find(model.manifest().files, wanted, &model::ManifestFile::path) ==
        model.manifest().files.end()) {
      return Error(StatusCode::kNotFound, "{} has no file {}", model.info().name.Text(),
                   Printable(wanted));
    }
  }
  return OkStatus();
}

std::unique_ptr<PyModelJob> LoadFiles(const PyModels& self, const Text& model, const Text& version,
                                      const std::string& folder, const py::object& files, bool sync,
                                      const py::dict& options, const py::object& timeout) {
  std::vector<std::string> wanted;
  if (!files.is_none()) wanted = TextsOf(files, "a file");
  const bool all = files.is_none();
  return std::make_unique<PyModelJob>(
      [cache = self.Use(), name = NameOf(model, version), folder, wanted, all, sync,
       load = LoadOptionsOf(options),
       deadline = DeadlineOf(timeout)](JobBoard* board) -> Result<LoadStats> {
        EMS_ASSIGN_OR_RETURN(const auto opened, cache->Open(name, With(load, board), deadline));
        EMS_RETURN_IF_ERROR(CheckFiles(*opened, wanted));
        model::FileTarget target({.folder = folder,
                                  .choose =
                                      [&](std::string_view path) {
                                        return all ||
                                               std::ranges::find(wanted, path) != wanted.end();
                                      },
                                  .sync = sync});
        return opened->Load(&target, deadline);
      },
      nullptr);
}

// Files into the caller's memory, or into memory that is handed out as records.
// `rooms`: None, or pairs (path, memory or None).
std::unique_ptr<PyModelJob> LoadBuffers(const PyModels& self, const Text& model,
                                        const Text& version, const py::object& rooms,
                                        const py::dict& options, const py::object& timeout) {
  auto buffers = std::make_unique<BufferSet>(BufferSet::Access::kWrite);
  std::map<std::string, MutableBytes, std::less<>> given;
  std::vector<std::string> wanted;
  if (!rooms.is_none()) {
    for (const py::handle pair : rooms) {
      const auto room = py::reinterpret_borrow<py::sequence>(pair);
      wanted.push_back(TextOf(py::object(room[0]), "a file"));
      if (py::object(room[1]).is_none()) continue;
      buffers->AddValue(py::object(room[1]));
      const auto parts = buffers->value(buffers->values() - 1);
      if (parts.size() != 1) Refuse(PyExc_TypeError, "a file goes into one piece of memory");
      given.emplace(wanted.back(), parts[0]);
    }
  }
  const bool all = rooms.is_none();
  return std::make_unique<PyModelJob>(
      [cache = self.Use(), name = NameOf(model, version), given, wanted, all,
       load = LoadOptionsOf(options),
       deadline = DeadlineOf(timeout)](JobBoard* board) -> Result<LoadStats> {
        EMS_ASSIGN_OR_RETURN(const auto opened, cache->Open(name, With(load, board), deadline));
        EMS_RETURN_IF_ERROR(CheckFiles(*opened, wanted));
        std::map<std::string, PyModelMemory, std::less<>> made;
        model::HostTarget target(
            {.choose =
                 [&](std::string_view path) {
                   return all || std::ranges::find(wanted, path) != wanted.end();
                 },
             .room = [&](std::string_view path, uint64_t bytes) -> Result<MutableBytes> {
               if (const auto mine = given.find(path); mine != given.end()) return mine->second;
               PyModelMemory& memory = made[std::string(path)];
               memory = {.memory = model::TensorMemory(bytes), .bytes = bytes};
               if (memory.memory.data() == nullptr) {
                 return Error(StatusCode::kResourceExhausted, "no memory for {} of {}", path,
                              FormatBytes(bytes));
               }
               return MutableBytes(memory.memory.data(), bytes);
             }});
        Result<LoadStats> stats = opened->Load(&target, deadline);
        if (!stats.ok()) return stats;
        for (const model::ManifestFile& file : opened->manifest().files) {
          if (given.contains(file.path) || !target.file(file.path).ok()) continue;
          board->Give({.file = file.path, .memory = std::move(made[file.path])});
        }
        return stats;
      },
      std::move(buffers));
}

template <auto Method>
py::dict InfoBy(const PyModels& self, const Text& model, const Text& version,
                const py::object& timeout) {
  return DictOf(AskOf<Method>(self, model, version, timeout));
}

}  // namespace

void BindModels(py::module_& module) {
  BindModelJob(module);
  py::class_<PyModels>(module, "ModelCache")
      .def(py::init(&Make), py::kw_only(), py::arg("controller"), py::arg("namespace"),
           py::arg("transport"), py::arg("connections_per_server"), py::arg("start_timeout"),
           py::arg("credentials"), py::arg("ca_file"), py::arg("shm_token"))
      .def("close", &PyModels::Close)
      .def("abandon", &PyModels::Abandon)
      .def_property_readonly("closed", &PyModels::closed)
      .def("add", &Add)
      .def("list",
           [](const PyModels& self, const py::object& timeout) {
             const Deadline deadline = DeadlineOf(timeout);
             py::list list;
             for (const model::ModelInfo& info :
                  Call(self, [&](ModelCache& cache) { return cache.List(deadline); }))
               list.append(DictOf(info));
             return list;
           })
      .def("get", &InfoBy<&ModelCache::Get>)
      .def("cancel", &InfoBy<&ModelCache::Cancel>)
      .def("pin", &InfoBy<&ModelCache::Pin>)
      .def("unpin", &InfoBy<&ModelCache::Unpin>)
      .def("check", &Check)
      .def("files", &Files)
      .def("prefetch",
           [](const PyModels& self, const Text& model, const Text& version,
              const py::object& priority, const py::object& timeout) {
             const ModelName name = NameOf(model, version);
             const auto wanted = static_cast<uint32_t>(CountOf(priority, "priority", 1000));
             const Deadline deadline = DeadlineOf(timeout);
             return DictOf(Call(
                 self, [&](ModelCache& cache) { return cache.Prefetch(name, wanted, deadline); }));
           })
      .def("progress", &ProgressOf)
      .def("remove",
           [](const PyModels& self, const Text& model, const Text& version,
              const py::object& timeout) {
             const ModelName name = NameOf(model, version);
             const Deadline deadline = DeadlineOf(timeout);
             Call(self, [&](ModelCache& cache) -> Result<bool> {
               EMS_RETURN_IF_ERROR(cache.Remove(name, deadline));
               return true;
             });
           })
      .def("wait_prefetched", &WaitPrefetched)
      .def("load_files", &LoadFiles)
      .def("load_buffers", &LoadBuffers);
}

}  // namespace ems::python
