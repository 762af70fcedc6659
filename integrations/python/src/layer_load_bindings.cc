#include "integrations/python/src/layer_load_bindings.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ems_context/layer_load.h"
#include "integrations/python/src/buffers.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/context_bindings.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"

namespace ems::python {

namespace py = pybind11;

namespace {

// Threading: thread-safe; made, abandoned and destroyed with the GIL.
class PyLayerLoad final {
 public:
  // `cache` is `of` as Python knows it. `blocks` have passed CheckBlocks.
  PyLayerLoad(py::object cache, PyCache* of, PyLayout layout,
              std::vector<context::PagedBlock> blocks, const context::CallOptions& options,
              const context::PagedOptions& paged)
      : cache_(std::move(cache)), layout_(std::move(layout)) {
    const GilRelease free;
    work_ = std::make_unique<Work>(of, *layout_.layout, std::move(blocks), options, paged);
  }
  ~PyLayerLoad() {
    if (work_ == nullptr) return;
    // The tensors are released after this, with the GIL.
    const GilRelease free;
    work_->load.Cancel();
    work_.reset();
  }
  PyLayerLoad(const PyLayerLoad&) = delete;
  PyLayerLoad& operator=(const PyLayerLoad&) = delete;

  // Raises FailedPrecondition in a child of fork().
  const context::LayerLoad& load() const {
    if (work_ == nullptr) {
      Raise(Error(StatusCode::kFailedPrecondition,
                  "the load belongs to the process that this one was forked from"));
    }
    return work_->load;
  }
  // In a child of fork(): the threads that work on the load are not there, so that its end would be
  // waited for in vain.
  void Abandon() { (void)work_.release(); }

 private:
  struct Work {
    Work(PyCache* of, const context::KvLayout& layout, std::vector<context::PagedBlock> blocks,
         const context::CallOptions& options, const context::PagedOptions& with)
        : paged(&of->cache, &of->store, layout, with),
          load(paged.LoadLayers(std::move(blocks), options)) {}
    context::PagedCache paged;
    context::LayerLoad load;
  };

  const py::object cache_;
  const PyLayout layout_;
  std::unique_ptr<Work> work_;
};

std::unique_ptr<PyLayerLoad> LoadLayers(const py::object& cache, const PyLayout& layout,
                                        const py::iterable& keys, const PyRuns& runs,
                                        const py::object& timeout,
                                        const py::object& layer_read_bytes) {
  auto& of = cache.cast<PyCache&>();
  of.CheckHere();
  context::PagedOptions paged = of.paged;
  if (!layer_read_bytes.is_none()) {
    paged.layer_read_bytes = CountOf(layer_read_bytes, "layer_read_bytes", UINT64_MAX);
  }
  const context::CallOptions options{.timeout = DurationOf(timeout, Duration{0})};
  return std::make_unique<PyLayerLoad>(
      cache, &of, layout, BlocksOf(layout, keys, runs, context::SlotUse::kWrite), options, paged);
}

Deadline DeadlineOf(const py::object& timeout) {
  return Deadline::After(DurationOf(timeout, Deadline::kMost));
}

// (leading blocks, [missing])
py::tuple WaitLayer(const PyLayerLoad& self, int64_t layer, const py::object& timeout) {
  const context::LayerLoad& load = self.load();
  if (layer < 0) Raise(Error(StatusCode::kOutOfRange, "layer {} of {}", layer, load.layers()));
  const Deadline deadline = DeadlineOf(timeout);
  Result<context::LayerReady> ready =
      WithoutGil([&] { return load.WaitLayer(static_cast<size_t>(layer), deadline); });
  const context::LayerReady at = ValueOrRaise(std::move(ready));
  return py::make_tuple(at.leading_blocks, at.missing);
}

py::tuple ResultOf(const PyLayerLoad& self, const py::object& timeout) {
  const context::LayerLoad& load = self.load();
  const Deadline deadline = DeadlineOf(timeout);
  const bool over = WithoutGil([&] { return load.Wait(deadline); });
  if (!over) {
    Raise(Error(StatusCode::kDeadlineExceeded, "the load continues, {} of {} layers have arrived",
                load.ready_layers(), load.layers()));
  }
  return AnswerOf(load.Result());
}

void Cancel(const PyLayerLoad& self) {
  const context::LayerLoad& load = self.load();
  const GilRelease free;
  load.Cancel();
}

}  // namespace

void BindLayerLoad(py::module_& module) {
  py::class_<PyLayerLoad>(module, "LayerLoad")
      .def_property_readonly("layers", [](const PyLayerLoad& self) { return self.load().layers(); })
      .def_property_readonly("ready_layers",
                             [](const PyLayerLoad& self) { return self.load().ready_layers(); })
      .def_property_readonly("done", [](const PyLayerLoad& self) { return self.load().Done(); })
      .def("wait_layer", &WaitLayer)
      .def("result", &ResultOf)
      .def("cancel", &Cancel)
      .def("abandon", &PyLayerLoad::Abandon);
  module.def("load_layers", &LoadLayers);
}

}  // namespace ems::python
