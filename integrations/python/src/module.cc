// The extension module `_ems`: what the Python sources of the package `ems` are made of.
#include <pybind11/pybind11.h>

#include "common/logging.h"
#include "integrations/python/src/batch_queue_bindings.h"
#include "integrations/python/src/client_bindings.h"
#include "integrations/python/src/context_bindings.h"
#include "integrations/python/src/drop_in_bindings.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/layer_load_bindings.h"
#include "integrations/python/src/model_bindings.h"
#include "integrations/python/src/model_session_bindings.h"

PYBIND11_MODULE(_ems, module) {
  module.doc() = "C++ half of the package ems; use ems.Client and its siblings instead";
  ems::python::BindClient(module);
  ems::python::BindContext(module);
  ems::python::BindLayerLoad(module);
  ems::python::BindBatchQueue(module);
  ems::python::BindModels(module);
  ems::python::BindModelSession(module);
  ems::python::BindDropIn(module);
  module.def("set_log_level",
             [](const std::string& level) { ems::python::RaiseIfError(ems::log::Init(level)); });
  module.attr("version") = EMS_VERSION;
}
