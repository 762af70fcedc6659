#include "integrations/python/src/model_session_bindings.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ems_model/tensor_stream.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"
#include "integrations/python/src/model_bindings.h"
#include "integrations/python/src/model_job.h"
#include "integrations/python/src/model_options.h"

namespace ems::python {

namespace py = pybind11;

namespace {

using model::LoadStats;
using model::OpenModel;
using model::SliceSpec;

// A version that is opened by the first job and stays open for those that follow.
// Threading: one job at a time, which Python sees to.
struct Session {
  std::shared_ptr<model::ModelCache> cache;  // the model must not outlive it
  model::ModelName name;
  model::LoadOptions options;
  JobBoard* board = nullptr;  // of the job that runs
  std::shared_ptr<StopFlag> stop = std::make_shared<StopFlag>();
  std::unique_ptr<OpenModel> model;
  // As the headers say; only with the names of tables that were read.
  std::vector<std::pair<std::string, model::TensorTable>> tables;

  Result<OpenModel*> Open(Deadline deadline) {
    if (model == nullptr) {
      options.stop = stop;
      // The flag of the job that runs ends the load; that of the session is one for all its loads.
      options.on_progress = [this](const model::LoadProgress& at) {
        board->Progress(at.bytes_done, at.bytes);
        if (board->stop->IsSet()) stop->Set();
      };
      EMS_ASSIGN_OR_RETURN(model, cache->Open(name, options, deadline));
    }
    return model.get();
  }
};

// Wants nothing but the headers.
class TableTarget final : public model::LoadTarget {
 public:
  explicit TableTarget(std::vector<std::pair<std::string, model::TensorTable>>* tables)
      : tables_(tables) {}
  bool wants_tables() const override { return true; }
  Status Begin(std::span<const model::LoadFile> files) override {
    for (const model::LoadFile& file : files) {
      if (file.table != nullptr) tables_->emplace_back(file.path, *file.table);
    }
    return OkStatus();
  }
  uint64_t Wants(uint32_t, uint64_t, uint64_t) override { return 0; }
  Status Place(uint32_t, uint64_t, uint64_t, std::vector<model::LoadRange>*) override {
    return OkStatus();
  }
  Status Arrived(uint32_t, uint64_t, uint64_t) override { return OkStatus(); }
  Status End(const Status&) override { return OkStatus(); }

 private:
  std::vector<std::pair<std::string, model::TensorTable>>* const tables_;
};

class PySession final {
 public:
  PySession(const PyModels& cache, const Text& model, const Text& version, const py::dict& options)
      : session_(std::make_shared<Session>()) {
    session_->cache = cache.Use();
    session_->name = NameOf(model, version);
    session_->options = LoadOptionsOf(options);
  }
  ~PySession() { Release(); }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  // Raises FailedPrecondition in a child of fork().
  const std::shared_ptr<Session>& session() const {
    if (session_ == nullptr) {
      Raise(Error(StatusCode::kFailedPrecondition,
                  "the tensors belong to the process that this one was forked from"));
    }
    return session_;
  }
  void Abandon() {
    // Leaked on purpose, as PyModels.
    (void)std::make_unique<std::shared_ptr<Session>>(session_).release();
    session_.reset();
  }

 private:
  void Release() {
    std::shared_ptr<Session> last = std::move(session_);
    const GilRelease free;
    last.reset();
  }
  std::shared_ptr<Session> session_;
};

std::unique_ptr<PyModelJob> ReadTables(const PySession& self, const py::object& timeout) {
  return std::make_unique<PyModelJob>(
      [session = self.session(),
       deadline = DeadlineOf(timeout)](JobBoard* board) -> Result<LoadStats> {
        session->board = board;
        EMS_ASSIGN_OR_RETURN(OpenModel * opened, session->Open(deadline));
        session->tables.clear();
        TableTarget target(&session->tables);
        return opened->Load(&target, deadline);
      },
      nullptr);
}

// [(file, metadata, [(name, dtype, shape, bytes, block elements, block bytes)])], after ReadTables.
py::list TablesOf(const PySession& self) {
  py::list list;
  for (const auto& [file, table] : self.session()->tables) {
    py::list tensors;
    for (const model::TensorInfo& tensor : table.tensors) {
      const model::DTypeTraits& traits = model::TraitsOf(tensor.dtype);
      tensors.append(py::make_tuple(tensor.name, std::string(traits.name), tensor.shape,
                                    tensor.bytes, traits.block_elements, traits.block_bytes));
    }
    list.append(py::make_tuple(file, table.metadata, tensors));
  }
  return list;
}

using Specs = std::map<std::string, std::map<std::string, SliceSpec, std::less<>>, std::less<>>;

// `wanted`: (file, name, axis, kind, a, b); kind "whole", "rank" (a of b) or "range" ([a, b)).
Specs SpecsOf(const py::iterable& wanted) {
  Specs specs;
  for (const py::handle one : wanted) {
    const auto [file, name, axis, kind, a, b] =
        one.cast<std::tuple<std::string, std::string, uint32_t, std::string, uint64_t, uint64_t>>();
    SliceSpec spec{.axis = axis};
    if (kind == "rank") {
      spec.rank = static_cast<uint32_t>(a);
      spec.ranks = static_cast<uint32_t>(b);
    } else if (kind == "range") {
      spec.range = model::AxisRange{.begin = a, .end = b};
    }
    specs[file][name] = spec;
  }
  return specs;
}

// Each tensor becomes a record as soon as it is complete.
std::unique_ptr<PyModelJob> LoadTensors(const PySession& self, const py::iterable& wanted,
                                        bool in_file_order, const py::object& timeout) {
  return std::make_unique<PyModelJob>(
      [session = self.session(), specs = SpecsOf(wanted), in_file_order,
       deadline = DeadlineOf(timeout)](JobBoard* board) -> Result<LoadStats> {
        session->board = board;
        EMS_ASSIGN_OR_RETURN(OpenModel * opened, session->Open(deadline));
        model::TensorStream stream(
            {.choose = [&](std::string_view file,
                           const model::TensorInfo& tensor) -> std::optional<SliceSpec> {
               const auto of_file = specs.find(file);
               if (of_file == specs.end()) return std::nullopt;
               const auto spec = of_file->second.find(tensor.name);
               if (spec == of_file->second.end()) return std::nullopt;
               return spec->second;
             },
             .order = in_file_order ? model::TensorOrder::kFile : model::TensorOrder::kAny},
            [&](model::LoadedTensor tensor) {
              board->Give(
                  {.file = std::string(tensor.file),
                   .name = tensor.info->name,
                   .dtype = std::string(model::TraitsOf(tensor.info->dtype).name),
                   .shape = tensor.slice->shape,
                   .memory = {.memory = std::move(tensor.memory), .bytes = tensor.bytes.size()}});
              return OkStatus();
            });
        return opened->Load(&stream, deadline);
      },
      nullptr);
}

}  // namespace

void BindModelSession(py::module_& module) {
  py::class_<PySession>(module, "ModelSession")
      .def(py::init<const PyModels&, const Text&, const Text&, const py::dict&>())
      .def("read_tables", &ReadTables)
      .def("tables", &TablesOf)
      .def("load", &LoadTensors)
      .def("abandon", &PySession::Abandon);
}

}  // namespace ems::python
