#pragma once
// Calls of a Router that own what they point to, and a view of servers that a test has started.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "mp_sdk/internal/router.h"
#include "tests/support/scripted_server.h"

namespace ems::internal {

inline NodeInfo ServerNode(uint32_t id, const std::string& address) {
  NodeInfo node;
  node.id = NodeId(id);
  node.name = "server" + std::to_string(id);
  node.boot_id = id;
  node.data_address = address;
  return node;
}

// Slot s belongs to owners[s % owners.size()].
inline ViewCache::View ViewOf(uint64_t epoch, std::vector<NodeInfo> nodes,
                              const std::vector<uint32_t>& owners) {
  SlotTable slots;
  for (uint16_t s = 0; s < kSlotCount; ++s) {
    slots.set_owner(SlotId(s), NodeId(owners[s % owners.size()]));
  }
  return *DhtView::Make(ViewVersion(1, epoch), std::move(nodes), slots, false);
}

inline ClientOptions RouterOptions(uint32_t connections = 8) {
  ClientOptions options;
  options.connections_per_server_max = connections;
  options.transport = TransportChoice::kTcp;
  return options;
}

// A batch that owns its keys, values and buffers.
struct Call {
  Call(wire::Op op, const std::vector<std::string>& names,
       Duration timeout = std::chrono::seconds(5))
      : keys(names), values(names.size()), buffers(names.size()) {
    batch.op = op;
    batch.ns = {NamespaceId(1), 1};
    batch.deadline = Deadline::After(timeout);
    for (size_t i = 0; i < keys.size(); ++i) {
      BatchItem item;
      item.key = keys[i];
      item.slot = SlotId(static_cast<uint16_t>(i));
      batch.items.push_back(item);
    }
  }
  Call& Value(size_t i, std::string value) {
    values[i] = std::move(value);
    batch.items[i].value = std::string_view(values[i]);
    return *this;
  }
  Call& Room(size_t i, size_t bytes) {
    buffers[i].assign(bytes, '\0');
    batch.items[i].into = std::as_writable_bytes(std::span(buffers[i]));
    return *this;
  }
  // Runs it; how long it took.
  Duration Run(Router* router) {
    const TimePoint start = Clock::System().Now();
    router->Run(&batch);
    for (const BatchItem& item : batch.items) EXPECT_FALSE(item.open);
    return Clock::System().Now() - start;
  }
  StatusCode code(size_t i = 0) const { return batch.items[i].status.code(); }
  std::string text(size_t i = 0) const { return ToString(batch.items[i].status); }
  std::vector<std::string> keys, values, buffers;
  Batch batch{wire::Op::kGet, 0, {}, Deadline(TimePoint()), {}};
};

// One scripted server owns everything.
struct Scripted {
  explicit Scripted(testing::ScriptedServer::Script script) : server(std::move(script)) {
    views.Install(ViewOf(1, {ServerNode(1, server.address())}, {1}));
  }
  testing::ScriptedServer server;
  ViewCache views;
  Router router{RouterOptions(), &views, {}};
};

}  // namespace ems::internal
