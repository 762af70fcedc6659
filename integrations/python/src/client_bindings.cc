#include "integrations/python/src/client_bindings.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "integrations/python/src/buffers.h"
#include "integrations/python/src/errors.h"
#include "integrations/python/src/gil_release.h"
#include "mp_sdk/key_scan.h"

namespace ems::python {

namespace py = pybind11;

namespace {

using Access = BufferSet::Access;

template <typename Enum>
Enum ChoiceOf(const std::string& word, const char* what,
              std::initializer_list<std::pair<const char*, Enum>> choices) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (word == name) return value;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  }
  Refuse(PyExc_ValueError, fmt::format("{} is \"{}\"; it may be {}", what, word, known));
}

TransportChoice TransportOf(const std::string& word) {
  return ChoiceOf<TransportChoice>(word, "transport",
                                   {{"auto", TransportChoice::kAuto},
                                    {"tcp", TransportChoice::kTcp},
                                    {"unix", TransportChoice::kUnix}});
}
Verify VerifyOf(const std::string& word) {
  return ChoiceOf<Verify>(word, "verify",
                          {{"", Verify::kDefault},
                           {"always", Verify::kAlways},
                           {"sampled", Verify::kSampled},
                           {"never", Verify::kNever}});
}

// Options of a call; they borrow `route`.
GetOptions ReadOptions(const py::object& timeout, const std::string& verify, bool touch,
                       std::string_view route) {
  return {.touch = touch,
          .verify = VerifyOf(verify),
          .timeout = DurationOf(timeout, Duration{0}),
          .route_key = route};
}
PutOptions WriteOptions(bool overwrite, const std::string& durability, const py::object& timeout,
                        std::string_view route) {
  return {.overwrite = overwrite,
          .durability = DurabilityOf(durability),
          .timeout = DurationOf(timeout, Duration{0}),
          .route_key = route};
}

std::vector<KeyItem> ItemsOf(const std::vector<std::string>& keys) {
  std::vector<KeyItem> items;
  items.reserve(keys.size());
  for (const std::string& key : keys) items.push_back({.key = key});
  return items;
}
std::vector<ConstBytes> ReadOnly(std::span<const MutableBytes> parts) {
  return {parts.begin(), parts.end()};
}

// A view of a value, as a buffer that Python can look into. Exports are counted: a view with
// exports cannot be released. Threading: the GIL.
struct PyView {
  std::shared_ptr<Client> client;  // the view must not outlive it
  ObjectView view;
  int exports = 0;
};

struct PyStaging {
  StagingBuffer buffer;
  int exports = 0;
};

template <typename Held>
int Fill(PyObject* self, Py_buffer* buffer, int flags, ConstBytes bytes, bool readonly) {
  void* const data = const_cast<std::byte*>(bytes.data());
  const int result = PyBuffer_FillInfo(buffer, self, data, static_cast<Py_ssize_t>(bytes.size()),
                                       readonly ? 1 : 0, flags);
  if (result == 0) ++py::handle(self).cast<Held&>().exports;
  return result;
}
template <typename Held>
void Unfill(PyObject* self, Py_buffer* /*buffer*/) {
  --py::handle(self).cast<Held&>().exports;
}
template <typename Held>
void RefuseIfExported(const Held& held) {
  if (held.exports > 0) {
    Refuse(PyExc_BufferError, "something still looks into this memory; let it go first");
  }
}

void SetUpView(PyHeapTypeObject* type) {
  type->as_buffer.bf_getbuffer = [](PyObject* self, Py_buffer* buffer, int flags) {
    return Fill<PyView>(self, buffer, flags, py::handle(self).cast<PyView&>().view.bytes(), true);
  };
  type->as_buffer.bf_releasebuffer = &Unfill<PyView>;
  type->ht_type.tp_as_buffer = &type->as_buffer;
}
void SetUpStaging(PyHeapTypeObject* type) {
  type->as_buffer.bf_getbuffer = [](PyObject* self, Py_buffer* buffer, int flags) {
    const MutableBytes bytes = py::handle(self).cast<PyStaging&>().buffer.bytes();
    return Fill<PyStaging>(self, buffer, flags, bytes, false);
  };
  type->as_buffer.bf_releasebuffer = &Unfill<PyStaging>;
  type->ht_type.tp_as_buffer = &type->as_buffer;
}

void BindMemory(py::module_& module) {
  py::class_<PyView>(module, "ObjectView", py::custom_type_setup(&SetUpView))
      .def("__len__", [](const PyView& self) { return self.view.size_bytes(); })
      .def_property_readonly("mapped", [](const PyView& self) { return self.view.mapped(); })
      .def("verify",
           [](PyView& self) {
             ++self.exports;  // another thread may not release it while it is read
             const Status status = WithoutGil([&] { return self.view.Verify(); });
             --self.exports;
             RaiseIfError(status);
           })
      .def("release", [](PyView& self) {
        RefuseIfExported(self);
        self.view.Release();
        self.client.reset();
      });
  py::class_<PyStaging>(module, "StagingBuffer", py::custom_type_setup(&SetUpStaging))
      .def("__len__", [](const PyStaging& self) { return self.buffer.bytes().size(); })
      .def("release", [](PyStaging& self) {
        RefuseIfExported(self);
        self.buffer.Release();
      });
}

// Left as it is where a child of fork() ends with what has held it, a cache or a view: its end
// would wait for threads that only the parent has.
std::shared_ptr<Client> Kept(std::unique_ptr<Client> client) {
  return {client.release(), [owner = ::getpid()](Client* last) {
            if (::getpid() == owner) std::unique_ptr<Client>(last).reset();
          }};
}

std::unique_ptr<PyClient> Connect(const Text& controller, const Text& name_space,
                                  const std::string& transport, double timeout,
                                  double connect_timeout, double start_timeout,
                                  uint32_t connections_per_server, uint32_t async_threads,
                                  uint64_t staging_bytes, const Text& shm_token) {
  ClientOptions options;
  if (connections_per_server == 0) {
    Raise(
        Error(StatusCode::kInvalidArgument, "connections_per_server is 0: no call could be made"));
  }
  options.controller = controller.text;
  options.name_space = name_space.text;
  options.transport = TransportOf(transport);
  options.op_timeout = DurationOf(py::float_(timeout), options.op_timeout);
  options.connect_timeout = DurationOf(py::float_(connect_timeout), options.connect_timeout);
  options.start_timeout = DurationOf(py::float_(start_timeout), options.start_timeout);
  options.connections_per_server_max = connections_per_server;
  options.async_threads = async_threads;
  options.staging_bytes = staging_bytes;
  options.shm_token = shm_token.text;
  Result<std::unique_ptr<Client>> client = WithoutGil([&] { return Client::Connect(options); });
  return std::make_unique<PyClient>(Kept(ValueOrRaise(std::move(client))));
}

void Put(const PyClient& self, const Text& key, const py::object& value, bool overwrite,
         const std::string& durability, const py::object& timeout, const Text& route) {
  const auto client = self.Use();
  BufferSet buffers(Access::kRead);
  buffers.AddValue(value);
  const PutOptions options = WriteOptions(overwrite, durability, timeout, route);
  const std::vector<ConstBytes> parts = ReadOnly(buffers.value(0));
  const Status status =
      WithoutGil([&] { return client->Put(key, std::span<const ConstBytes>(parts), options); });
  RaiseIfError(status);
}

py::object Get(const PyClient& self, const Text& key, const py::object& timeout,
               const std::string& verify, bool touch, const Text& route) {
  const auto client = self.Use();
  const GetOptions options = ReadOptions(timeout, verify, touch, route);
  const Result<std::string> value = WithoutGil([&] { return client->Get(key, options); });
  if (!IsThere(value.status())) return py::none();
  return py::bytes(*value);
}

py::object GetInto(const PyClient& self, const Text& key, const py::object& into,
                   const py::object& timeout, const std::string& verify, bool touch,
                   const Text& route) {
  const auto client = self.Use();
  BufferSet buffers(Access::kWrite);
  buffers.AddValue(into);
  const GetOptions options = ReadOptions(timeout, verify, touch, route);
  const Result<uint64_t> length =
      WithoutGil([&] { return client->Get(key, MutableBuffers(buffers.value(0)), options); });
  if (!IsThere(length.status())) return py::none();
  return py::int_(*length);
}

bool GetRange(const PyClient& self, const Text& key, uint64_t offset, const py::object& into,
              const py::object& timeout, const std::string& verify, bool touch, const Text& route) {
  const auto client = self.Use();
  BufferSet buffers(Access::kWrite);
  buffers.AddValue(into);
  const GetOptions options = ReadOptions(timeout, verify, touch, route);
  const Status status = WithoutGil(
      [&] { return client->GetRange(key, offset, MutableBuffers(buffers.value(0)), options); });
  return IsThere(status);
}

py::object View(const PyClient& self, const Text& key, const py::object& timeout,
                const std::string& verify, bool touch, const Text& route) {
  auto client = self.Use();
  const GetOptions options = ReadOptions(timeout, verify, touch, route);
  Result<ObjectView> view = WithoutGil([&] { return client->GetView(key, options); });
  if (!IsThere(view.status())) return py::none();
  auto held = std::make_unique<PyView>();
  held->client = std::move(client);
  held->view = std::move(view).value();
  return py::cast(std::move(held));
}

py::object Stat(const PyClient& self, const Text& key, const py::object& timeout,
                const Text& route) {
  const auto client = self.Use();
  const GetOptions options = ReadOptions(timeout, "", false, route);
  const Result<uint64_t> length = WithoutGil([&] { return client->Stat(key, options); });
  if (!IsThere(length.status())) return py::none();
  return py::int_(*length);
}

bool Exists(const PyClient& self, const Text& key, const py::object& timeout, bool touch,
            const Text& route) {
  const auto client = self.Use();
  const GetOptions options = ReadOptions(timeout, "", touch, route);
  Result<bool> there = WithoutGil([&] { return client->Exists(key, options); });
  return ValueOrRaise(std::move(there));
}

bool Remove(const PyClient& self, const Text& key, const py::object& timeout, const Text& route) {
  const auto client = self.Use();
  const GetOptions options = ReadOptions(timeout, "", false, route);
  const Status status = WithoutGil([&] { return client->Remove(key, options); });
  return IsThere(status);
}

// Each result: None, or the error.
py::list MultiPut(const PyClient& self, const py::iterable& pairs, bool overwrite,
                  const std::string& durability, const py::object& timeout) {
  const auto client = self.Use();
  BufferSet buffers(Access::kRead);
  std::vector<std::string> keys;
  for (const py::handle pair : pairs) {
    const auto key_value = py::reinterpret_borrow<py::sequence>(pair);
    keys.push_back(TextOf(key_value[0], "a key"));
    buffers.AddValue(py::object(key_value[1]));
  }
  std::vector<std::vector<ConstBytes>> parts;
  for (size_t i = 0; i < keys.size(); ++i) parts.push_back(ReadOnly(buffers.value(i)));
  std::vector<PutItem> items;
  for (size_t i = 0; i < keys.size(); ++i) {
    items.push_back({.key = keys[i], .value = std::span<const ConstBytes>(parts[i])});
  }
  const PutOptions options = WriteOptions(overwrite, durability, timeout, "");
  const std::vector<Status> results = WithoutGil([&] { return client->MultiPut(items, options); });
  py::list list;
  for (const Status& result : results) list.append(result.ok() ? py::none() : ErrorOf(result));
  return list;
}

// Each result: the length, None for a miss, or the error.
py::list MultiGetInto(const PyClient& self, const py::iterable& pairs, const py::object& timeout,
                      const std::string& verify, bool touch) {
  const auto client = self.Use();
  BufferSet buffers(Access::kWrite);
  std::vector<std::string> keys;
  for (const py::handle pair : pairs) {
    const auto key_into = py::reinterpret_borrow<py::sequence>(pair);
    keys.push_back(TextOf(key_into[0], "a key"));
    buffers.AddValue(py::object(key_into[1]));
  }
  std::vector<GetItem> items;
  for (size_t i = 0; i < keys.size(); ++i) {
    items.push_back({.key = keys[i], .into = MutableBuffers(buffers.value(i))});
  }
  const GetOptions options = ReadOptions(timeout, verify, touch, "");
  const std::vector<Result<uint64_t>> results =
      WithoutGil([&] { return client->MultiGet(items, options); });
  return LengthsOf(results);
}

// Each result: bytes, None for a miss, or the error.
py::list MultiGet(const PyClient& self, const py::iterable& wanted, const py::object& timeout) {
  const auto client = self.Use();
  const std::vector<std::string> keys = TextsOf(wanted, "a key");
  std::vector<std::string> values(keys.size());
  std::vector<GetItem> items;
  for (size_t i = 0; i < keys.size(); ++i)
    items.push_back({.key = keys[i], .into = {}, .grow = &values[i]});
  const GetOptions options = ReadOptions(timeout, "", true, "");
  const auto results = WithoutGil([&] { return client->MultiGet(items, options); });
  py::list list = LengthsOf(results);
  for (size_t i = 0; i < keys.size(); ++i)
    if (results[i].ok()) list[i] = py::bytes(std::exchange(values[i], {}));
  return list;
}

std::vector<bool> MultiExists(const PyClient& self, const py::iterable& wanted,
                              const py::object& timeout) {
  const auto client = self.Use();
  const std::vector<std::string> keys = TextsOf(wanted, "a key");
  const GetOptions options = ReadOptions(timeout, "", true, "");
  const GilRelease free;
  std::vector<bool> there;
  for (const auto& one : client->MultiExists(ItemsOf(keys), options)) {
    there.push_back(one.ok() && *one);
  }
  return there;
}

std::vector<bool> MultiRemove(const PyClient& self, const py::iterable& wanted,
                              const py::object& timeout) {
  const auto client = self.Use();
  const std::vector<std::string> keys = TextsOf(wanted, "a key");
  const GetOptions options = ReadOptions(timeout, "", false, "");
  const GilRelease free;
  std::vector<bool> removed;
  for (const Status& one : client->MultiRemove(ItemsOf(keys), options)) removed.push_back(one.ok());
  return removed;
}

PyStaging Allocate(const PyClient& self, uint64_t bytes) {
  const auto client = self.Use();
  Result<StagingBuffer> buffer = WithoutGil([&] { return client->AllocateBuffer(bytes); });
  return PyStaging{.buffer = ValueOrRaise(std::move(buffer))};
}

py::dict Stats(const PyClient& self) {
  const ClientStats stats = self.Use()->stats();
  py::dict dict;
  dict["gets"] = stats.gets;
  dict["hits"] = stats.hits;
  dict["puts"] = stats.puts;
  dict["bytes_read"] = stats.bytes_read;
  dict["bytes_written"] = stats.bytes_written;
  dict["retries"] = stats.retries;
  dict["wrong_owner"] = stats.wrong_owner;
  dict["breaker_opened"] = stats.breaker_opened;
  dict["checksum_mismatches"] = stats.checksum_mismatches;
  dict["one_sided"] = stats.one_sided;
  return dict;
}

py::dict CallLatencies(const PyClient& self) {
  py::dict calls;
  for (const CallLatency& call : self.Use()->stats().calls) {
    py::dict one;
    one["timed"] = call.latencies.count;
    one["p50_us"] = call.p50_us();
    one["p99_us"] = call.p99_us();
    calls[py::make_tuple(call.op, call.path)] = std::move(one);
  }
  return calls;
}

// A page of a walk over keys: (key, length, tier, age, idle) each. Threading: the GIL.
struct PyScan {
  std::shared_ptr<Client> client;  // the scan must not outlive it
  KeyScan scan;
};

PyScan Scan(const PyClient& self, const Text& prefix, const py::object& timeout) {
  auto client = self.Use();
  Result<KeyScan> scan =
      KeyScan::Begin(client.get(), {.prefix = prefix, .timeout = DurationOf(timeout, Duration{0})});
  return {.client = std::move(client), .scan = ValueOrRaise(std::move(scan))};
}

py::object SecondsOf(const std::optional<Duration>& time) {
  if (!time) return py::none();
  return py::float_(std::chrono::duration<double>(*time).count());
}

py::list NextPage(PyScan& self) {
  const std::vector<KeyInfo> page = WithoutGil([&] { return self.scan.Next(); });
  py::list list;
  for (const KeyInfo& one : page) {
    const char* const tier = one.tier == Tier::kDram  ? "dram"
                             : one.tier == Tier::kSsd ? "ssd"
                                                      : "unknown";
    list.append(py::make_tuple(py::bytes(one.key), one.bytes, tier, SecondsOf(one.age),
                               SecondsOf(one.idle)));
  }
  return list;
}

// Of servers whose keys are missing.
py::list Failures(const PyScan& self) {
  py::list list;
  for (const KeyScan::Failure& failure : self.scan.failures())
    list.append(ErrorOf(Prefixed(failure.status, "keys of " + failure.server + " are missing")));
  return list;
}

std::string MetricsText(const PyClient& self) { return PrometheusText(self.Use()->stats()); }

}  // namespace

Duration DurationOf(py::handle seconds, Duration otherwise) {
  if (seconds.is_none()) return otherwise;
  const double value = PyFloat_AsDouble(seconds.ptr());
  if (PyErr_Occurred() != nullptr) PassOn();
  if (!std::isfinite(value) || value < 0) {
    Refuse(PyExc_ValueError, fmt::format("a time of {} s makes no sense", value));
  }
  constexpr double kDay = 86400;
  return Duration(static_cast<int64_t>(std::min(value, kDay) * 1e9));
}

Durability DurabilityOf(const std::string& word) {
  return ChoiceOf<Durability>(
      word, "durability",
      {{"", Durability::kDefault}, {"dram", Durability::kDram}, {"ssd", Durability::kSsd}});
}

py::object StagingOf(StagingBuffer buffer) {
  return py::cast(PyStaging{.buffer = std::move(buffer)});
}

void BindClient(py::module_& module) {
  BindMemory(module);
  const auto none = py::none();
  py::class_<PyScan>(module, "Scan")
      .def("next_page", &NextPage)
      .def("failures", &Failures)
      .def_property_readonly("done", [](const PyScan& self) { return self.scan.done(); });
  py::class_<PyClient>(module, "Client")
      .def(py::init(&Connect), py::kw_only(), py::arg("controller"), py::arg("namespace"),
           py::arg("transport"), py::arg("timeout"), py::arg("connect_timeout"),
           py::arg("start_timeout"), py::arg("connections_per_server"), py::arg("async_threads"),
           py::arg("staging_bytes"), py::arg("shm_token"))
      .def("close", &PyClient::Close)
      .def("abandon", &PyClient::Abandon)
      .def_property_readonly("closed", &PyClient::closed)
      .def("put", &Put, py::arg("key"), py::arg("value"), py::kw_only(),
           py::arg("overwrite") = false, py::arg("durability") = "", py::arg("timeout") = none,
           py::arg("route_key") = "")
      .def("get", &Get, py::arg("key"), py::kw_only(), py::arg("timeout") = none,
           py::arg("verify") = "", py::arg("touch") = true, py::arg("route_key") = "")
      .def("get_into", &GetInto, py::arg("key"), py::arg("into"), py::kw_only(),
           py::arg("timeout") = none, py::arg("verify") = "", py::arg("touch") = true,
           py::arg("route_key") = "")
      .def("get_range", &GetRange, py::arg("key"), py::arg("offset"), py::arg("into"),
           py::kw_only(), py::arg("timeout") = none, py::arg("verify") = "",
           py::arg("touch") = true, py::arg("route_key") = "")
      .def("view", &View, py::arg("key"), py::kw_only(), py::arg("timeout") = none,
           py::arg("verify") = "", py::arg("touch") = true, py::arg("route_key") = "")
      .def("stat", &Stat, py::arg("key"), py::kw_only(), py::arg("timeout") = none,
           py::arg("route_key") = "")
      .def("exists", &Exists, py::arg("key"), py::kw_only(), py::arg("timeout") = none,
           py::arg("touch") = true, py::arg("route_key") = "")
      .def("remove", &Remove, py::arg("key"), py::kw_only(), py::arg("timeout") = none,
           py::arg("route_key") = "")
      .def("multi_put", &MultiPut, py::arg("items"), py::kw_only(), py::arg("overwrite") = false,
           py::arg("durability") = "", py::arg("timeout") = none)
      .def("multi_get_into", &MultiGetInto, py::arg("items"), py::kw_only(),
           py::arg("timeout") = none, py::arg("verify") = "", py::arg("touch") = true)
      .def("multi_get", &MultiGet, py::arg("keys"), py::kw_only(), py::arg("timeout") = none)
      .def("multi_exists", &MultiExists, py::arg("keys"), py::kw_only(), py::arg("timeout") = none)
      .def("multi_remove", &MultiRemove, py::arg("keys"), py::kw_only(), py::arg("timeout") = none)
      .def("scan", &Scan, py::arg("prefix"), py::kw_only(), py::arg("timeout") = none)
      .def("allocate", &Allocate, py::arg("size"))
      .def("call_latencies", &CallLatencies)
      .def("metrics_text", &MetricsText)
      .def("stats", &Stats);
}

}  // namespace ems::python
