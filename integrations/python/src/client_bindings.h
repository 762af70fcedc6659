#pragma once
// `_ems.Client` and what it hands out. The GIL is free while a call is under way.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "mp_sdk/client.h"

namespace ems::python {

// A client that Python can close. Threading: as Client; Close by one thread, with the GIL.
class PyClient final {
 public:
  explicit PyClient(std::shared_ptr<Client> client) : client_(std::move(client)) {}
  // What a call works on, kept alive by it. Raises Unavailable when closed. The GIL is held.
  std::shared_ptr<Client> Use() const;
  void Close();
  // In a child of fork(): its threads are not there, so that nothing may be ended.
  void Abandon();
  bool closed() const { return client_ == nullptr; }

 private:
  std::shared_ptr<Client> client_;
};

// Seconds → Duration; None: `otherwise`. Raises ValueError  negative, or not a number
Duration DurationOf(pybind11::handle seconds, Duration otherwise);
// "dram", "ssd", or "": as the namespace says. Raises ValueError
Durability DurabilityOf(const std::string& word);
void BindClient(pybind11::module_& module);

}  // namespace ems::python
