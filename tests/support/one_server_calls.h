#pragma once
// The calls of the SDK to one server over TCP, without a controller: for tests that stand between
// the two. Values are those of self_verifying.h, all of one length.
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mp_sdk/internal/server_calls.h"
#include "proto/key_page.h"
#include "tests/support/self_verifying.h"

namespace ems::testing {

// One connection at a time. Threading: one thread.
class OneServerCalls final {
 public:
  struct Options {
    NamespaceRef ns;
    bool immutable = false;  // keys of that namespace have one value for ever
    size_t value_bytes = 24;
  };
  struct PutFlags {
    bool overwrite = true;
    bool durable = false;
  };

  OneServerCalls(const std::string& address, const Options& options)
      : value_bytes_(options.value_bytes) {
    server_.id = NodeId(1);
    server_.name = "server";
    server_.boot_id = 1;
    server_.data_address = address;
    SlotTable slots;
    for (uint16_t s = 0; s < kSlotCount; ++s) slots.set_owner(SlotId(s), NodeId(1));
    views_.Install(*DhtView::Make(ViewVersion(1, 1), {server_}, slots, false));
    calls_.Bind(options.ns, options.immutable);
  }

  // Of `keys`, each with a value of that Put.
  std::vector<Status> Put(const std::vector<std::string>& keys, uint64_t put_id,
                          const PutFlags& flags) {
    internal::Batch batch = calls_.MakeBatch(wire::Op::kPut, Soon());
    if (flags.overwrite) batch.flags |= wire::kFlagOverwrite;
    if (flags.durable) batch.flags |= wire::kFlagDurableSsd;
    std::vector<std::string> values;
    values.reserve(keys.size());
    for (const std::string& key : keys) values.push_back(ValueOf(key, put_id));
    for (size_t i = 0; i < keys.size(); ++i) {
      batch.items.push_back(calls_.MakeItem(keys[i], {}));
      batch.items.back().value = std::string_view(values[i]);
    }
    return Run(&batch);
  }
  std::vector<Status> Put(const std::vector<std::string>& keys, uint64_t put_id) {
    return Put(keys, put_id, PutFlags());
  }
  std::vector<Status> Remove(const std::vector<std::string>& keys) {
    internal::Batch batch = calls_.MakeBatch(wire::Op::kRemove, Soon());
    for (const std::string& key : keys) batch.items.push_back(calls_.MakeItem(key, {}));
    return Run(&batch);
  }
  // Lengths of what came, which is in `values`.
  std::vector<Result<uint64_t>> Get(const std::vector<std::string>& keys,
                                    std::vector<std::string>* values) {
    std::vector<GetItem> items;
    values->assign(keys.size(), std::string(value_bytes_, '\0'));
    for (size_t i = 0; i < keys.size(); ++i)
      items.push_back({.key = keys[i], .into = std::as_writable_bytes(std::span((*values)[i]))});
    return calls_.Ask(std::span<const GetItem>(items), {}, Soon());
  }
  std::vector<Result<uint64_t>> GetRange(const std::vector<std::string>& keys, uint64_t offset,
                                         uint64_t bytes, std::vector<std::string>* parts) {
    std::vector<RangeItem> items;
    parts->assign(keys.size(), std::string(bytes, '\0'));
    for (size_t i = 0; i < keys.size(); ++i)
      items.push_back({.key = keys[i],
                       .offset = offset,
                       .into = std::as_writable_bytes(std::span((*parts)[i])),
                       .whole_bytes = value_bytes_});
    return calls_.Ask(std::span<const RangeItem>(items), {}, Soon());
  }
  std::vector<Result<uint64_t>> Lengths(const std::vector<std::string>& keys) {
    std::vector<KeyItem> items;
    items.reserve(keys.size());
    for (const std::string& key : keys) items.push_back({.key = key});
    return calls_.Ask(std::span<const KeyItem>(items), {}, Soon());
  }
  // Stats or Ping, on a connection of its own.
  Result<std::string> Ask(wire::Op op) { return router_.Ask(server_, op, Soon()); }

  // The keys of a page of all.
  Result<std::vector<std::string>> Scan(NamespaceRef ns) {
    wire::FrameHeader header;
    header.op = wire::Op::kScan;
    header.namespace_id = ns.id.value();
    header.namespace_generation = ns.generation;
    header.view = ViewVersion(1, 1).packed();
    const wire::ScanBody body;
    EMS_ASSIGN_OR_RETURN(const std::string answer,
                         router_.Ask(server_, header, wire::RawBytes(body), Soon()));
    EMS_ASSIGN_OR_RETURN(const wire::KeyPage page, wire::ParseKeyPage(AsBytes(answer)));
    std::vector<std::string> keys;
    for (const wire::ListedKey& one : page.keys) keys.push_back(one.key);
    std::ranges::sort(keys);
    return keys;
  }

  std::string ValueOf(const std::string& key, uint64_t put_id) const {
    return MakeValue("kv", key, put_id, value_bytes_);
  }

 private:
  static ClientOptions OneConnection() {
    ClientOptions options;
    options.transport = TransportChoice::kTcp;
    options.connections_per_server_max = 1;
    options.connect_timeout = std::chrono::seconds(5);  // a busy machine is no fault of the server
    return options;
  }
  static Deadline Soon() { return Deadline::After(std::chrono::seconds(10)); }
  std::vector<Status> Run(internal::Batch* batch) {
    calls_.Run(batch);
    std::vector<Status> statuses;
    for (internal::BatchItem& item : batch->items) statuses.push_back(item.status);
    return statuses;
  }

  const size_t value_bytes_;
  const ClientOptions options_ = OneConnection();
  NodeInfo server_;
  ViewCache views_;
  internal::Router router_{options_, &views_, {}};
  internal::ServerCalls calls_{options_, &router_};
};

inline bool AllOk(const std::vector<Status>& statuses) {
  return std::ranges::all_of(statuses, [](const Status& status) { return status.ok(); });
}

}  // namespace ems::testing
