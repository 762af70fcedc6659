#pragma once
// `_ems.Client` and the objects that it returns. The GIL is free while a call is under way.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "integrations/python/src/closable.h"
#include "mp_sdk/client.h"

namespace ems::python {

// Threading: as Client, beside what Closable says.
class PyClient final : public Closable<Client> {
 public:
  using Closable::Closable;
  std::shared_ptr<Client> Use() const { return UseOr("the client"); }
};

// Seconds → Duration; None: `otherwise`. Raises ValueError  negative, or not a number
Duration DurationOf(pybind11::handle seconds, Duration otherwise);
// "dram", "ssd", or "": as the namespace says. Raises ValueError
Durability DurabilityOf(const std::string& word);
// A StagingBuffer of Python's.
pybind11::object StagingOf(StagingBuffer buffer);
void BindClient(pybind11::module_& module);

}  // namespace ems::python
