#include "integrations/python/src/model_job.h"

#include <pybind11/stl.h>

#include <utility>

#include "common/check.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"

namespace ems::python {

namespace py = pybind11;

void JobBoard::Progress(uint64_t done, uint64_t total) {
  auto state = state_.Lock();
  state->progress = {.bytes_done = done, .bytes = total};
}

void JobBoard::Give(LoadedRecord record) {
  auto state = state_.Lock();
  EMS_CHECK(!state->over, "a record of a job that is over");
  state->records.push_back(std::move(record));
  changed_.notify_all();
}

void JobBoard::End() {
  auto state = state_.Lock();
  state->over = true;
  changed_.notify_all();
}

bool JobBoard::Take(Duration timeout, LoadedRecord* record) {
  auto state = state_.Lock();
  state.WaitFor(changed_, timeout, [](const State& s) { return s.over || !s.records.empty(); });
  if (state->records.empty()) return false;
  *record = std::move(state->records.front());
  state->records.pop_front();
  return true;
}

bool JobBoard::Drained() {
  auto state = state_.Lock();
  return state->over && state->records.empty();
}

model::LoadProgress JobBoard::progress() {
  auto state = state_.Lock();
  return state->progress;
}

namespace {

using Outcome = Result<model::LoadStats>;

// On a thread of its own, which `thread` becomes.
PyModelJob::Call Start(PyModelJob::Work work, JobBoard* board, CallGate* gate, Thread* thread) {
  using State = CallState<Outcome>;
  auto state = std::make_shared<State>(
      Deadline::After(Deadline::kMost), gate, [](const Status& why) { return Outcome(why); },
      [board](const Outcome&) { board->End(); });
  const auto threads = [thread](std::function<void()>&& task) {
    *thread = Thread("ems-model-py", std::move(task));
    return true;
  };
  State::Submit(state, threads, OkStatus(),
                [board, work = std::move(work)](const std::shared_ptr<State>& mine) {
                  mine->Finish(work(board));
                });
  return PyModelJob::Call(std::move(state));
}

}  // namespace

PyModelJob::Running::Running(Work work)
    : call(Start(std::move(work), board.get(), &gate, &thread)) {}

PyModelJob::PyModelJob(Work work, std::unique_ptr<BufferSet> buffers)
    : buffers_(std::move(buffers)), running_(std::make_unique<Running>(std::move(work))) {}

PyModelJob::~PyModelJob() {
  if (running_ == nullptr) return;
  Stop();
  // The buffers are released after this, with the GIL.
}

PyModelJob::Running& PyModelJob::Use() const {
  if (running_ == nullptr) {
    Raise(Error(StatusCode::kFailedPrecondition,
                "the load belongs to the process that this one was forked from"));
  }
  return *running_;
}

void PyModelJob::Stop() {
  Running& running = Use();
  const GilRelease free;
  running.board->stop->Set();
  (void)running.call.Result();
}

namespace {

py::dict DictOf(const model::LoadStats& stats) {
  const auto seconds = [](Duration time) {
    return std::chrono::duration_cast<std::chrono::duration<double>>(time).count();
  };
  py::dict dict;
  dict["bytes"] = stats.bytes;
  dict["dram_bytes"] = stats.dram_bytes;
  dict["ssd_bytes"] = stats.ssd_bytes;
  dict["source_bytes"] = stats.source_bytes;
  dict["blocks"] = stats.blocks;
  dict["misses"] = stats.misses;
  dict["jobs"] = stats.jobs;
  dict["elapsed"] = seconds(stats.elapsed);
  dict["waiting"] = seconds(stats.waiting);
  dict["detour"] = stats.detour.ok() ? "" : ToString(stats.detour);
  return dict;
}

// (file, name, dtype, shape, memory); None: none within `timeout`; False: there will be none.
py::object Next(const PyModelJob& self, const py::object& timeout) {
  JobBoard& board = self.board();
  const Duration wait = DurationOf(timeout, Deadline::kMost);
  LoadedRecord record;
  const bool taken = WithoutGil([&] { return board.Take(wait, &record); });
  if (!taken) return board.Drained() ? py::object(py::bool_(false)) : py::object(py::none());
  return py::make_tuple(record.file, record.name, record.dtype, record.shape,
                        std::make_unique<PyModelMemory>(std::move(record.memory)));
}

bool Wait(const PyModelJob& self, const py::object& timeout) {
  const PyModelJob::Call& call = self.call();
  const Deadline until = Deadline::After(DurationOf(timeout, Deadline::kMost));
  const GilRelease free;
  return call.Wait(until);
}

void SetUpMemory(PyHeapTypeObject* type) {
  type->as_buffer.bf_getbuffer = [](PyObject* self, Py_buffer* buffer, int flags) {
    const auto& held = py::handle(self).cast<PyModelMemory&>();
    return PyBuffer_FillInfo(buffer, self, held.memory.data(), static_cast<Py_ssize_t>(held.bytes),
                             0, flags);
  };
  type->ht_type.tp_as_buffer = &type->as_buffer;
}

}  // namespace

void BindModelJob(py::module_& module) {
  py::class_<PyModelMemory>(module, "ModelMemory", py::custom_type_setup(&SetUpMemory))
      .def("__len__", [](const PyModelMemory& self) { return self.bytes; });
  py::class_<PyModelJob>(module, "ModelJob")
      .def("wait", &Wait)
      .def("next", &Next)
      .def("progress",
           [](const PyModelJob& self) {
             const model::LoadProgress at = self.board().progress();
             return py::make_tuple(at.bytes_done, at.bytes);
           })
      .def("result",
           [](const PyModelJob& self) {
             if (!self.call().Done())
               Raise(Error(StatusCode::kFailedPrecondition, "the call is under way"));
             return DictOf(ValueOrRaise(self.call().Result()));
           })
      .def("ask_to_stop", [](const PyModelJob& self) { self.board().stop->Set(); })
      .def("stop", &PyModelJob::Stop)
      .def("abandon", &PyModelJob::Abandon);
}

}  // namespace ems::python
